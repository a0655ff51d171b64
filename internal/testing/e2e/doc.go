// SPDX-License-Identifier: Apache-2.0

// Package e2e has the end-to-end tests: unmodified programs (nginx, curl, iperf3,
// redis, Python, static Go programs) under `smcr run` on two hosts. The tests check
// what the programs received and what crossed the wire between the hosts. It has
// tests only; the programs written for it are in programs.
//
// What belongs here is what only the whole product can show. The tests build the
// program into a temporary directory and run it. They use none of its packages
// except the decoder of messages that tshark does not know. Each test has a time
// limit of its own and leaves no process and no namespace behind.
//
// Needs root and the programs that scripts/setup-test-tools installs; `make e2e`
// runs it. The tests measure time, so they run one after the other.
package e2e
