// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// What a program has written waits in these places if its peer does not read. Two of them are those of the stack's
// sockets, and without a bound, TCP would let each of them grow to megabytes:
//
//	place                              | bound
//	-----------------------------------+---------------------------------------
//	send buffer of the program         | TCP's: net.ipv4.tcp_wmem, SO_SNDBUF
//	inner, not read                    | innerReceive
//	the way to the peer                | that of whoever carries the bytes
//	inner of the peer, or outer: there | unsent
//	is no room for it                  |
//	receive buffer of the other        | TCP's: net.ipv4.tcp_rmem, SO_RCVBUF
//	program                            |
//
// What is sent and not acknowledged yet has no bound but TCP's: the window of the receiver is.
const (
	// innerReceive is about what the way behind inner takes (userstack.DefaultBuf). The hop between the program and inner needs
	// no more: it is within the host.
	innerReceive = 512 << 10
	// unsent is a setting of the namespace (settings.go). It is enough to have something to send while the stack is woken. At half of it, there is room again.
	unsent = 128 << 10
)

// limitReceive limits what a socket receives before it is read.
func limitReceive(fd int) { setReceive(fd, innerReceive) }

// setReceive sets a receive buffer for good: TCP does not let it grow any more.
func setReceive(fd, bytes int) {
	// The kernel takes twice the value, and counts the memory of packets: of the usual large ones, most is payload.
	value := bytes / 2
	if atonce.SetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, value) != nil {
		_ = atonce.SetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, value) // in a user namespace: at most net.core.rmem_max
	}
}
