// SPDX-License-Identifier: Apache-2.0

// Package relay moves bytes between a program and the network. The program has one end
// of a unix socketpair in place of its TCP socket. A [Relay] reads and writes the other
// end, and moves the bytes to and from an SMC-R or TCP connection. The service and the
// launcher both use this package, so the rules for hang-up, half close, reset, urgent
// bytes and data that is still to be sent are in one place. The comment of [Relay] has
// the table of these rules.
//
// A [Socket] is a stream socket that keeps each urgent byte (MSG_OOB) at its place in
// the stream, for reading (SO_OOBINLINE) and for writing. [Unix], [File] and [NewTCP]
// adapt sockets of which programs also have descriptors.
//
// This package does not decide whether a connection uses SMC, and does not exchange
// messages between the launcher and the service.
//
// # Concurrency
//
// One goroutine may read a [Socket] while another one writes it. A call on a Socket that
// waits does not occupy a thread, even if a program that shares the socket clears
// O_NONBLOCK.
//
// The package needs no privileges. Unix sockets have urgent bytes since Linux 5.15, if
// CONFIG_AF_UNIX_OOB is set.
package relay
