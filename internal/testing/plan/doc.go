// SPDX-License-Identifier: Apache-2.0

// Plan runs the tests: the gate, and the parts of `make test-all`. It says which step runs, how
// long it took, what failed, what was flaky and what was skipped, and keeps that as a result.
//
//	go run ./internal/testing/plan [flags] gate | test | lint | PART | all | results
//	go run ./internal/testing/plan repeat [flags]
//
// File parts.go has the steps of each. File features.go says which end-to-end tests the gate runs.
// docs/testing.md says when to run which.
//
// # The gate
//
// `make gate` says whether main is broken, soon, and the same each time. What takes longer, or has
// an answer that changes without a commit, is evidence and belongs to the parts.
//
//	tests                                     gate                  part
//	------------------------------------------------------------------------------------------
//	of all packages                           short forms           race: long forms, race detector
//	with Linux kernels (kernelPackages)       TestPeer of interop   kernel: all
//	end-to-end (package e2e)                  one for each feature  e2e: all, race detector
//	hosts that lie, faults                    short forms           adversary: long forms
//	long runs and floods (package soak)       short forms           long
//	the packages for users                    no                    packages
//	simulation of whole stacks                a twentieth           sim: all seeds, planted bugs
//	arm64, s390x                              no                    cross
//	modules beside the main one,              no                    modules
//	vulnerabilities
//	gofmt, go vet, staticcheck                yes
//
// More than this is done by hand: make fuzz, soak, flood, connections, faults, field, test-suites,
// mutants, bench.
//
// # A test that fails once
//
// In the gate, a system test (package testkind) that fails runs again, alone, up to twice. If it
// then passes, the gate is green, and says FLAKY, the name and what the failed try printed. At most
// five tests of a run may do that. A pure test that fails is a bug: the gate is red, whatever it
// does when it runs again. In the parts nothing runs again.
//
// # Results
//
// A part writes bin/results/PART.json: commit, tree, seconds of each step, counts, and the names of
// what failed, was flaky or was skipped. `make test-all` runs the parts that this tree has not
// passed. bin/results/flaky.jsonl has a line for each flaky test.
//
// gotestsum runs go test, decides what runs again, and prints the tests. What belongs here is the
// list of steps and what came of them. What a step checks belongs to the tests, to the tools of Go
// and to the scripts in folder scripts.
package main
