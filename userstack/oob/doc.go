// SPDX-License-Identifier: Apache-2.0

// Package oob reads and writes the urgent bytes of stream sockets, TCP and
// unix alike, at their place in the stream: what MSG_OOB sends and SO_OOBINLINE
// leaves where it is. A relay that carries them needs both.
//
// No call on a [Socket] occupies a thread while it waits, also where a program that
// shares the socket makes it a blocking one.
//
// A [Socket] belongs to one reader and one writer. No privileges. Unix sockets
// have urgent bytes since Linux 5.15, where CONFIG_AF_UNIX_OOB is set.
package oob
