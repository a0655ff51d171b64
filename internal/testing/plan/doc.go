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
// # What runs where
//
//	tests                                     make test             make test-all
//	------------------------------------------------------------------------------------
//	of packages in which goroutines share     short form, race      long form, race
//	state (racePackages)                      detector              detector
//	of all other packages                     short form            long form, race
//	                                                                detector
//	with Linux kernels (kernelPackages)       TestPeer of package   all, long form
//	                                          interop
//	end-to-end (package e2e)                  one for each feature  all, race detector
//	long runs and floods (package soak)       300 connections       three floods, a soak
//	                                                                of a minute
//	simulation of whole stacks                300 seeds             3000 seeds
//	faults (package faults)                   no                    a part, another
//	                                                                one each day
//	the packages for users (package           no                    built, installed,
//	packages)                                                       used, removed
//	gofmt, go vet                             yes                   yes
//	staticcheck, generated files, arm64,      no                    yes
//	s390x, packages plots, apps and
//	kubernetes, tests of codecs and cores
//	on s390x in an emulator
//
// More than this takes too long for each change: more seeds and endless repetition (make
// repeat), long runs (make soak, make connections, make flood), all faults (make faults),
// situations from the field in all modes (make field), suites of others (make test-suites),
// fuzzing (make fuzz), and the tests that the summary lists as skipped, with the way to run
// them.
//
// # Steps at the same time
//
// Tests wait much: for timers, for the network, for a guest. Steps that only compute
// (compilers, analyses, the simulation) run beside such a step with low priority. With two
// processors, make test then takes about ten minutes, and make test-all about an hour.
// Package guest limits how many tests have a Linux kernel at the same time (flag
// -guests), so the packages with kernels run at the same time too.
//
// A failed step does not stop the steps after it. The exit status is 1 if a step
// failed, 2 if the command line is wrong. The output needs no terminal. A step of
// go test prints the line of go test for each package that is done.
//
// What belongs here is the order and the report of the steps. What a step checks
// belongs to the tests, to the tools of Go and to the scripts in folder scripts.
package main
