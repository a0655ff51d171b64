// SPDX-License-Identifier: Apache-2.0

// Package suites runs the test suites of others beneath `smcr run`, and compares them test by
// test with the same suite over kernel TCP. A program that its own authors test notices every
// difference that matters to it.
//
// A suite is a value of [Suite] in the list of [All]: where it comes from (Debian's packages,
// Debian's source packages, the Go toolchain), how it is built, its jobs, and which parser
// reads what a job prints. A job runs in network namespaces of its own in each mode
// ([Modes]). Suites that talk to themselves run in one namespace; those with a server and a
// client that can be started apart ([Job].Server) run between two hosts too, over RoCE. Those that talk
// to themselves do so by way of a second host, where the stack stands at the devices (package reflector).
//
// Tests that differ are run again, in TCP and in the mode, because tests of others are not
// all reliable: a difference is reported with how often it was seen ([Difference]).
//
// Program smcrsuites does all this and prints the tables: `make test-suites`. A new suite is
// one more value, and at most one more parser (parse.go), with a piece of real output in
// parse_test.go.
//
// Sources and what is built of them are kept in ~/.cache/smcr/suites, never in the
// repository. Nothing of them is copied here. What belongs here is how to get, run and read
// suites of others. Situations that were found with them, and made small, are in package
// field.
//
// A run needs root, Debian 12 or a child of it, and the packages that smcrsuites names when
// they are missing (scripts/setup-test-tools suites installs them).
package suites
