// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// A program's end of an accepted connection costs descriptors, and a relay for as long as the
// connection lives. So a connection that stays TCP at once never gets one: its peer has closed
// it, sends data, or is declined with the first answer. Floods of such connections are cheap
// then. See inside.Stack.ServeUnsure.

// claim is the part of a server's handshake that asks for the program's end of the connection.
type claim struct {
	take func() error     // asks for it; nil if nobody has it, or it was asked for
	seen rendezvous.Event // the answer to the first [rendezvous.Look], if it is known
}

// begin asks for the end of the program now, unless the connection probably stays TCP at once:
// the peer has sent a whole message or data, or has closed its side.
func (c *claim) begin(tcp TCPConn, buf []byte) error {
	if c.take == nil {
		return nil
	}
	if sc, ok := tcp.(syscall.Conn); ok {
		if c.seen = peekFirst(sc, buf); c.seen != nil {
			return nil
		}
	}
	return c.now()
}

// now asks for the end of the program if that was not done yet.
func (c *claim) now() error {
	take := c.take
	if c.take = nil; take == nil {
		return nil
	}
	return take()
}

// peekFirst returns what a Look sees if the peer has sent a whole message or data, or has
// closed its side, else nil. It uses buf for the bytes, which stay unread.
func peekFirst(tcp syscall.Conn, buf []byte) (ev rendezvous.Event) {
	_ = onSocket(tcp, func(fd int) error {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN, err == unix.EINTR:
		case err != nil:
			ev = rendezvous.ReadFailed{Err: os.NewSyscallError("recvfrom", err)}
		case n == 0:
			ev = rendezvous.EOF{}
		case rendezvous.Rest(buf[:n]) == 0:
			ev = rendezvous.FirstBytes{Bytes: buf[:wire.HeaderLen]}
		}
		return nil
	})
	return ev
}

// claimEnd asks for the program's end of the connection. If that fails, nobody wants the
// connection any more, which is an event.
func (h *handshake) claimEnd() rendezvous.Event {
	err := h.claim.now()
	if err == nil {
		return nil
	}
	h.canceled, h.cause = nil, err
	return rendezvous.Canceled{Cause: err}
}
