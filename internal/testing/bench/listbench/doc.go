// SPDX-License-Identifier: Apache-2.0

// Listbench measures how long the listings of smcr take and how much memory they
// use on tables of 1, 1,000 and 100,000 rows. A peer of its own, another process
// of this program, serves generated rows by netlink on a unix socket; the
// commands ask it through --backend or SMCR_BACKEND, as they would ask a stack.
// The time includes that of the peer, which has to make and send the answer.
//
// `make bench` runs it after smcrbench. No privileges.
package main
