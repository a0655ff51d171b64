// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net/netip"

	"smcr/smc"
)

// A Mode is what carries the data of an SMC socket.
type Mode uint8

// The modes. The first three numbers are those of the kernel.
const (
	ModeSMCR Mode = 0 // SMC over RDMA
	ModeTCP  Mode = 1 // the connection became plain TCP
	ModeSMCD Mode = 2 // SMC over a direct memory device (ISM)
)

// String returns SMCR, TCP or SMCD.
func (m Mode) String() string { return name("Mode", m, "SMCR", "TCP", "SMCD") }

// A Shutdown is the set of directions that a program has shut down.
type Shutdown uint8

// The directions, with the numbers of the kernel.
const (
	ShutdownRecv Shutdown = 1 // the program does not receive any more (RCV_SHUTDOWN)
	ShutdownSend Shutdown = 2 // the program does not send any more (SEND_SHUTDOWN)
)

// A Cursor is a position in an RMBE or in a send buffer (RFC 7609, appendix A.4): how
// often it has wrapped, and the offset in bytes.
type Cursor struct {
	Wrap  uint16
	Count uint32
}

// String returns WRAP:COUNT in hexadecimal digits.
func (c Cursor) String() string { return fmt.Sprintf("%04x:%08x", c.Wrap, c.Count) }

// A ConnInfo has the alert token, the buffer sizes in bytes and the cursors of a
// connection. Prod and Cons are the producer and consumer cursors of the CDC
// messages received and sent; Prep, Sent and Fin are positions in the send
// buffer.
type ConnInfo struct {
	Token    uint32 // own alert token
	Sndbuf   uint32 // send buffer
	RMBE     uint32 // own RMBE
	PeerRMBE uint32 // the peer's RMBE

	RXProd, RXCons, TXProd, TXCons Cursor

	RXProdFlags, RXStateFlags uint8 // flags of the last CDC message received
	TXProdFlags, TXStateFlags uint8 // flags of the last CDC message sent

	TXPrep, TXSent, TXFin Cursor
}

// A ConnLink is the link that an SMC-R connection uses.
type ConnLink struct {
	LinkID  uint8
	IBDev   string
	IBPort  uint8
	GID     smc.GID
	PeerGID smc.GID
	Role    smc.Role // of the link group
}

// A ConnDMB is the memory that an SMC-D connection uses.
type ConnDMB struct {
	LinkID     uint32
	PeerGID    uint64
	GID        uint64
	Token      uint64
	PeerToken  uint64
	ExtGID     uint64
	PeerExtGID uint64
}

// A ConnFallback is why a connection became plain TCP. The fields are CLC decline codes,
// or zero if there was none.
type ConnFallback struct {
	Reason uint32 // found on this side
	Peer   uint32 // received from the peer
}

// A Connection is an SMC socket.
type Connection struct {
	State    smc.ConnState
	Mode     Mode
	Shutdown Shutdown
	Local    netip.AddrPort // zero when unbound
	Remote   netip.AddrPort // zero when there is no peer
	NetDev   uint32         // index of the interface it is bound to, or 0
	Cookie   uint64         // socket cookie, or 0
	UID      uint32         // owner of the socket
	Inode    uint64

	Info     *ConnInfo // nil when no SMC connection exists
	Link     *ConnLink // nil except for SMC-R
	DMB      *ConnDMB  // nil except for SMC-D
	Fallback ConnFallback

	// The fields below are set only by stacks in user space.

	LinkGroup LinkGroupID
	PID       uint32 // the process that opened the socket
	Command   string // its name
	TXBytes   uint64 // accepted from the program
	RXBytes   uint64 // delivered to the program
}

// Carried reports whether the connection is one that the stack carries over SMC, and which ends with it: neither a listening
// socket nor a connection that is TCP.
func (c *Connection) Carried() bool { return c.Mode != ModeTCP && c.State != smc.StateListen }

// CountCarried returns how many connections of a list are [Connection.Carried].
func CountCarried(all []Connection) (n int) {
	for i := range all {
		if all[i].Carried() {
			n++
		}
	}
	return n
}
