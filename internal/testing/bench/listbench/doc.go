// SPDX-License-Identifier: Apache-2.0

// Listbench measures the time and the memory of the listings of smcr, on tables of 1,
// 1,000 and 100,000 rows. Another process of this program serves generated rows by
// netlink on a unix socket. The commands ask it with --backend or SMCR_BACKEND, like a
// stack. The time includes that of this process, which makes and sends the answer.
//
// `make bench` runs it after smcrbench. It needs no privileges.
package main
