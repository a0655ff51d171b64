// SPDX-License-Identifier: Apache-2.0

// Package trial compiles packages with all of their mutants, and runs tests with one of
// these at a time. It needs the go command. The tests run as a user without rights, unless
// told otherwise: mutated code must not change the host.
package trial
