// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end tests: unmodified programs (nginx, curl,
// iperf3, redis, Python, static Go programs) under `smcr run` on two hosts,
// judged by what they received and by what crossed the wire between them. It
// has no other code; package probe is the one program written for it.
//
// What belongs here is what only the whole product can show. The tests run the
// program as built into a temporary directory and know nothing of its packages,
// but for the decoder of messages that tshark does not know. Each ends within a bound of its own and leaves no process or
// namespace behind.
//
// Needs root, and the programs that scripts/setup-test-tools installs; run by
// `make e2e`. The tests measure time, so they run one after the other.
package e2e
