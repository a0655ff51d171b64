// SPDX-License-Identifier: Apache-2.0

package why

import (
	"time"

	"smcr/nl"
	"smcr/smc"
)

// Facts are what is known about a socket.
type Facts struct {
	// Conn is the socket: as its stack lists it, or the kernel's TCP socket if none does.
	Conn nl.Connection
	// Stack is the name of the SMC stack that lists the socket, or "".
	Stack string
	// Software reports whether the RoCE device of the connection is one in software.
	Software bool

	// Process has the socket. Nil: it is not visible.
	Process *Process
	// More is how many further processes have it.
	More int
	// Here reports whether both ends are on this machine, in this network namespace.
	Here bool
	// Translated reports whether the peer has an address of this machine, but no socket of this network namespace is the other end. The
	// host may pass the connection on to another host, or to another network namespace.
	Translated bool
	// Accepted reports whether the program accepted the connection.
	Accepted bool
	// Clients are those of a listener now, by what carries their connections.
	Clients Clients

	// Traffic is what was counted, or nil.
	Traffic *Traffic
	// Resent is what was sent again, or nil if nobody counts it.
	Resent *Resent

	// The same for all sockets.

	// UserStack and KernelStack report whether there is such a stack.
	UserStack, KernelStack bool
	// NoWire says why the stack in user space takes no connections of programs, or is empty.
	NoWire string
	// UID is the user who asks.
	UID uint32
}

// Clients are connections of a listener.
type Clients struct{ SMC, TCP int }

// Traffic are the bytes of a connection.
type Traffic struct {
	Sent, Received uint64
	// Time is how long was measured, and NewSent and NewReceived are the bytes of this time. Zero:
	// nothing was measured.
	Time                 time.Duration
	NewSent, NewReceived uint64
}

// rates returns the bytes in a second, or false if nothing was measured.
func (t *Traffic) rates() (sent, received uint64, ok bool) {
	if t == nil || t.Time <= 0 {
		return 0, 0, false
	}
	per := func(n uint64) uint64 { return uint64(float64(n)/t.Time.Seconds() + 0.5) }
	return per(t.NewSent), per(t.NewReceived), true
}

// Resent is what was sent again.
type Resent struct {
	N uint64
	// Time is how long was measured, and New is how many of N were in it. Zero: nothing was measured.
	Time time.Duration
	New  uint64
	// Link of the link group counts it, or Device, for all connections. Both are empty: it is that of
	// this connection.
	Link   uint8
	Device string
}

// Many packets are sent again if it is mostResent in a second, or, of a connection of which all is known, a packet in
// a hundred.
const (
	mostResent  = 10
	leastResent = 3    // fewer of one connection are chance
	packet      = 1000 // bytes, at least
)

// losing reports whether much was sent again while it was measured.
func (f *Facts) losing() bool {
	r, t := f.Resent, f.Traffic
	if r == nil || r.Time <= 0 {
		return false
	}
	own := r.Link == 0 && r.Device == ""
	return float64(r.New) >= mostResent*r.Time.Seconds() || own && t != nil && r.New >= leastResent && r.New*100 >= t.NewSent/packet
}

// A Process is a process with sockets.
type Process struct {
	PID     int
	UID     uint32
	Command string // its name
	// Start is how to start the program, in short.
	Start string
	// Attached reports whether its cgroup is attached, as by smcr run, or is one of a run that a stack will attach.
	Attached bool
	// Run reports whether it is attached by smcr run.
	Run bool
	// Unit is its service of systemd, or "".
	Unit string
	// Container is the ID of its container, or "".
	Container string
	// IsStack reports whether the process is a stack of smcr.
	IsStack bool
	// Part is which part of smcr the process is, such as "smcr exporter", or "".
	Part string
}

// ours reports whether the socket is one of smcr itself.
func (f *Facts) ours() bool { return f.Process != nil && f.Process.Part != "" }

// listens reports whether the socket is a listener.
func (f *Facts) listens() bool { return f.Conn.State == smc.StateListen }
