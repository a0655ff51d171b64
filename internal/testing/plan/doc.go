// SPDX-License-Identifier: Apache-2.0

// Plan runs the steps of `make test` and `make test-all`. It says which step runs,
// how far it is, what failed, what was slow and what was skipped:
//
//	go run ./internal/testing/plan [flags] PLAN
//
// PLAN is test, test-all, or one of the parts of test-all: lint, race, sim, cross,
// e2e, kernel. Flag -list prints the steps and runs nothing.
//
// File plans.go has the steps of each plan. That is the place to change what
// `make test` does. File features.go says which end-to-end tests `make test` runs.
//
// A failed step does not stop the steps after it. The exit status is 1 if a step
// failed, 2 if the command line is wrong. The output needs no terminal. A step of
// go test prints the line of go test for each package that is done.
//
// What belongs here is the order and the report of the steps. What a step checks
// belongs to the tests, to the tools of Go and to the scripts in folder scripts.
package main
