// SPDX-License-Identifier: Apache-2.0

// Package sample reads what the SMC stacks of a network namespace say about themselves at one
// moment, and computes rates from two such samples. smcr top and smcr stats watch show these.
//
// What both commands show belongs here: the counters of a stack with the retransmissions of
// its devices, wherever these are counted, and the arithmetic. How it looks is the matter of
// the commands. Connections are handed over one at a time, because there may be very many.
//
// [Reader] performs I/O; all else is pure. Nothing needs privileges.
package sample
