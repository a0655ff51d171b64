// SPDX-License-Identifier: Apache-2.0

// Mutants changes the code of a package in one place after the other, and says which
// changes its tests do not notice:
//
//	mutants [flags] ./userstack/wire …
//
// A change that no test notices (a mutant that survives) shows what the tests do not check.
// See package mutate for how the mutants are made, and package trial for how they are tried.
//
// Survivors that are known are in testdata/survivors, with the reason for each: see type
// survivors. The command reports the others, and entries that are not true any more.
//
// The command belongs to the tests: `make mutants PKG=./userstack/wire`. It has no rights
// if it can help it: as root, it runs the tests as user nobody, so tests that need rights
// skip themselves.
package main
