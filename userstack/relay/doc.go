// SPDX-License-Identifier: Apache-2.0

// Package relay carries the bytes between a program and the network: from the
// end of the unix socketpair that a program has in the place of its TCP socket
// to the connection that stands behind it, which is SMC-R or TCP, and back. The
// service and the launcher both have such connections and use this package, so
// there is one set of rules of hang-up, half close, reset, last words and urgent
// bytes. A [Relay] has the table.
//
// A [Socket] is a stream socket whose urgent bytes are read and written at their
// place in the stream: what MSG_OOB sends and SO_OOBINLINE leaves where it is.
// [Unix], [File] and [NewTCP] adapt sockets that programs have descriptors of, too.
//
// No call on a [Socket] occupies a thread while it waits, also where a program that
// shares the socket makes it a blocking one.
//
// A [Socket] belongs to one reader and one writer. No privileges. Unix sockets
// have urgent bytes since Linux 5.15, where CONFIG_AF_UNIX_OOB is set.
package relay
