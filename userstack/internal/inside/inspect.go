// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"net/netip"

	"smcr/smc"
	"smcr/userstack/linkgroup"
)

// A Tuning changes how a stack behaves, for tests of whole stacks. A zero field changes
// nothing.
type Tuning struct {
	// Timers changes the timers of each new link group.
	Timers func(smc.Role, *linkgroup.Timers)
	// Random replaces the source of random numbers.
	Random func() uint32
	// SendChunk is linkgroup.Config.SendChunk.
	SendChunk int
}

// An Inspector shows tests of whole stacks the state of a stack. C is *userstack.Conn,
// which this package cannot name.
type Inspector[C any] interface {
	// MemoryInUse returns how many bytes of registered memory are in use.
	MemoryInUse() int
	// Ending returns how many link groups have ended but have not released their queue
	// pairs and memory yet.
	Ending() int
	// Groups returns the link groups, the oldest first.
	Groups() []Group
	// SetLimits sets Config.MaxLinks and Config.MaxConns for link groups to come.
	SetLimits(links, conns int)

	// GroupOf returns the link group of a connection.
	GroupOf(c C) Group
	// View calls f with the protocol state of a connection, with its link group locked.
	View(c C, f func(*linkgroup.Conn))
	// Readable returns how many bytes can be read now.
	Readable(c C) (n int, err error)
	// Writable returns how many bytes can be written now.
	Writable(c C) (n int, err error)
	// Woken reports whether the stack has signalled readers or writers since the last
	// call.
	Woken(c C) bool
}

// A Group is a link group of a stack. Two values are equal if they are the same group.
type Group interface {
	// Name returns the name of the group in logs.
	Name() string
	// Peer returns the IP address of the peer, or the zero Addr.
	Peer() netip.Addr
	// View calls f with the protocol state, with the group locked.
	View(f func(*linkgroup.Group))
	// PeerLost does what follows when a client declines a connection because it does
	// not have the link of this queue pair any more.
	PeerLost(qpn smc.QPN, cause error)
}

// SetTuning applies t to config, a *userstack.Config.
func SetTuning(config any, t Tuning) { bound.Tune(config, t) }

// InspectorOf returns the Inspector of stack, a *userstack.Stack.
func InspectorOf[C any](stack any) Inspector[C] { return bound.Inspect(stack).(Inspector[C]) }
