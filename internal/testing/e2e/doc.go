// SPDX-License-Identifier: Apache-2.0

// Package e2e has the end-to-end tests: unmodified programs (nginx, curl, iperf3, redis,
// Python, static Go programs) under `smcr run` on two hosts. The tests check what the
// programs received and what crossed the wire between the hosts. It has tests only. The
// programs that are written for these tests are in the folder programs.
//
// A test belongs here if it needs the whole product. The tests build the program in a
// temporary directory and run it. They use none of its packages except the decoder of
// messages that tshark does not know, and package nl where a command would start too late to see
// anything. Each test has its own time limit and leaves no
// process and no namespace.
//
// The tests need root and the programs that scripts/setup-test-tools installs; `make test-all PART=e2e`
// runs them. They measure time, so they run one after the other.
package e2e
