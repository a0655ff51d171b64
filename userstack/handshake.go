// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"time"

	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/driver"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
)

// handshake drives the machine of one side of a rendezvous: it carries out the actions of the
// machine and passes events to it. One goroutine uses it at a time: see attended.
type handshake struct {
	attended
	s     *Stack
	ctx   context.Context
	tcp   TCPConn
	owner inside.Owner
	role  smc.Role
	m     *rendezvous.Machine

	actions []rendezvous.Action // memory of todo
	todo    []rendezvous.Action // what the machine has asked for, not carried out yet
	unsent  []byte              // the rest of a message for which there was no room

	recvBuf int // the receive buffer of the TCP connection in bytes
	reader  tcpReader
	writes  tcpWrites
	timer   *time.Timer

	// The sources of the next events.
	look     firstLook
	watching polling      // over a DECLINE that was sent
	letting  polling      // over the program that was let go
	llc      <-chan error // the outcome of an LLC exchange, or nil
	turn     firstTurn
	path     pathUse
	canceled <-chan struct{} // ctx.Done(), or nil once the machine knows
	cause    error           // why the machine was told to give up

	// What the rendezvous has made until now.
	host    hostSide
	fresh   *driver.Group // of a first contact
	conn    *driver.Conn
	with    rendezvous.Caller // of a server, since it has admitted it
	counted bool              // by Stack.limit
	place   *undecidedPlace   // of a server, until PROPOSAL is there; or nil
}

// firstLook is the part of a handshake that looks at the first bytes on TCP before it reads.
type firstLook struct {
	on   bool // the machine needs more of them
	seen int  // how many of them the machine knows
}

// firstTurn is the part of a server's handshake that takes turns with other first contacts
// of the same peer.
type firstTurn struct {
	of   rendezvous.Contact
	busy <-chan struct{} // closed when another first contact ends, or nil
	end  func()          // ends the turn that this handshake has; or nil
}

// leave ends the turn, if it is the turn of this handshake.
func (t *firstTurn) leave() {
	if t.end != nil {
		t.end()
		t.end = nil
	}
}

// hostSide is the part of a handshake that knows the addresses and ports of this host on the
// way to the peer.
type hostSide struct {
	lan    driver.LAN
	ports1 []*devices.Port // that version 1 can use
	ports2 []*devices.Port // that version 2 can use: first those in the subnet of the connection
}

// ports returns the RoCE ports for the version that was agreed on.
func (s *hostSide) ports(t *rendezvous.Terms) []*devices.Port {
	if t == nil {
		return s.ports1
	}
	return s.ports2
}

func newHandshake(ctx context.Context, s *Stack, tcp TCPConn, role smc.Role, conf rendezvous.Config) *handshake {
	h := &handshake{s: s, ctx: ctx, tcp: tcp, owner: inside.OwnerFrom(ctx), role: role, canceled: ctx.Done()}
	h.reader = tcpReader{tcp: tcp, guard: &s.guard}
	_ = tcp.SetDeadline(time.Time{})
	h.writes = tcpWrites{tcp: tcp, ends: [2]context.Context{ctx, s.ctx}}
	h.path = pathUse{s: s, role: role, began: time.Now()}
	conf.PeerID, conf.Hostname, conf.ConfirmWait = s.peerIDNow(), s.cfg.Hostname, linkgroup.ConfirmWait
	if role == smc.Client {
		h.m = rendezvous.NewClient(conf)
	} else {
		h.m = rendezvous.NewServer(time.Now(), conf)
	}
	return h
}

// end releases what only the rendezvous needs.
func (h *handshake) end() {
	h.unwatch()
	h.reader.close()
	h.writes.close()
	if h.timer != nil {
		h.timer.Stop()
	}
	h.turn.leave()
	if h.counted {
		h.s.limit.remove(h.with)
		h.counted = false
	}
}

// answerOf returns ev, or an event with err if err is not nil.
func answerOf(ev rendezvous.Event, err error) rendezvous.Event {
	if err != nil {
		return rendezvous.Failed{Failure: failureOf(err)}
	}
	return ev
}

// failureOf converts an error to an event for the machine.
func failureOf(err error) rendezvous.Failure {
	d := declineFor(err)
	return rendezvous.Failure{
		Why:        rendezvous.Refusal{Code: d.Code, Err: d.Err},
		NoFallback: errors.Is(err, linkgroup.ErrNoFallback),
		NotOwner:   errors.Is(err, linkgroup.ErrNotItsOwn),
	}
}

// interrupted returns why the rendezvous must end, if the machine does not know it yet.
func (h *handshake) interrupted() rendezvous.Event {
	switch {
	case h.canceled != nil && h.ctx.Err() != nil:
		h.canceled, h.cause = nil, context.Cause(h.ctx)
		return rendezvous.Canceled{Cause: h.cause}
	case h.s.ctx.Err() != nil:
		h.cause = ErrStackClosed
		return rendezvous.Closed{Cause: h.cause}
	}
	return nil
}
