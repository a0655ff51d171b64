// SPDX-License-Identifier: Apache-2.0

// Package relay moves bytes between a program and the network: between the stack's end of
// the program's TCP connection, and an SMC-R connection. The rules for hang-up, half close,
// reset, urgent bytes and data that is still to be sent are in one place: the comment of
// [Relay] has their table.
//
// A [Socket] is a TCP socket that keeps each urgent byte (MSG_OOB) at its place in the
// stream, for reading (SO_OOBINLINE) and for writing.
//
// Where an engine carries the bytes and the ends of streams without a goroutine (package driver), a
// relay does everything else: see [ErrRides]. This package does not decide whether a connection uses SMC.
//
// # Concurrency
//
// One goroutine may read a [Socket] while another one writes it. A call on a Socket that
// waits does not occupy a thread. The package needs no privileges.
package relay
