// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// A connection of a listener of this stack is undecided from Accept until its PROPOSAL is there. Whoever connects decides how long that
// takes, so their number is bounded: of all, of an origin, and of strangers. The eBPF program that announces knows none of the counts. So
// it is told to whom to announce nothing.
//
//	an origin, or strangers     | nothing is announced to them | one that was announced all the same
//	----------------------------+------------------------------+------------------------------------
//	have their share            | for fullTime, and again      | has overWait for PROPOSAL
//	said nothing too often      | for a minute or more         | has its time
//
// The stack that serves other programs has the same rule for theirs, but counts in its eBPF programs (userstack/divert/undecided.go).

const (
	// fullTime is how long nothing is announced to those who have their share. Places get free all the time.
	fullTime = time.Second
	// overWait is the wait for PROPOSAL of a connection beyond a share, which was on its way when the share was reached. An honest one has
	// sent PROPOSAL a round trip after SYN-ACK.
	overWait = time.Second
)

// undecided is the part of a stack that counts these connections.
type undecided struct {
	mu        sync.Mutex
	places    *rendezvous.Limit
	silent    quota.Silents[quota.Origin]
	strangers time.Time // until when nothing is announced to strangers, or a little later
}

// An undecidedPlace is that of one of these connections. It is for one goroutine.
type undecidedPlace struct {
	u    *undecided
	who  rendezvous.Caller
	over bool // it is beyond a share, and not counted
	left bool
}

// leave gives the place back. p may be nil.
func (p *undecidedPlace) leave() {
	if p == nil || p.left {
		return
	}
	p.left = true
	if p.over {
		return
	}
	p.u.mu.Lock()
	defer p.u.mu.Unlock()
	p.u.places.Leave(p.who)
}

// enter counts a connection with a host. full says that the next one would be beyond a share, and strangers whether that is the share of all
// of them.
func (u *undecided) enter(who rendezvous.Caller) (p *undecidedPlace, full, strangers bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p = &undecidedPlace{u: u, who: who, over: u.places.Enter(who) != nil}
	return p, p.over || u.places.Refuses(who) != nil, u.places.FullForStrangers()
}

// decided notes how the rendezvous has ended. It returns for how long nothing is to be announced to the origin, if that is new.
func (u *undecided) decided(now time.Time, who rendezvous.Caller, err error) (mute time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err == nil:
		u.silent.Spoke(who.Origin)
	case errors.Is(err, os.ErrDeadlineExceeded):
		u.silent.Forget(now, func(quota.Origin) {}) // the eBPF program knows the time
		return u.silent.Add(now, who.Origin, who.Host)
	}
	return 0
}

// why returns why nothing is announced to a host for now, or 0.
func (u *undecided) why(now time.Time, who rendezvous.Caller) smc.Diagnosis {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.silent.Muted(now, who.Origin):
		return smc.DiagSilent
	case u.places.Refuses(who) != nil:
		return smc.DiagMem
	}
	return 0
}

// roomy reports whether something is announced to everybody.
func (u *undecided) roomy(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range u.silent.Mutes(now) {
		return false
	}
	return u.places.Total() < rendezvous.MaxUndecidedOfOrigin/2
}

// mutes returns the origins that have said nothing too often.
func (u *undecided) mutes(now time.Time) (all []quota.Mute) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for m := range u.silent.Mutes(now) {
		all = append(all, m)
	}
	return all
}

// callerOf returns how the peer of a connection is counted. It is not valid for one that was reset.
func (s *Stack) callerOf(tcp *net.TCPConn) (who rendezvous.Caller, valid bool) {
	if hasPeer(tcp) != nil {
		return who, false
	}
	return s.caller(addrPort(tcp.LocalAddr()).Addr(), addrPort(tcp.RemoteAddr()).Addr()), true
}

// serverAnnounced is Server for a connection of a listener whose SYN-ACK has announced SMC.
func (s *Stack) serverAnnounced(tcp *net.TCPConn) (*Conn, error) {
	who, valid := s.callerOf(tcp)
	if !valid {
		return s.Server(s.ctx, tcp)
	}
	p, full, strangers := s.undecided.enter(who)
	defer p.leave()
	if full {
		s.full(who, strangers)
	}
	var conf rendezvous.Config
	if p.over {
		conf.ProposalWait = overWait
	}
	c, err := s.handshakeAt(s.ctx, tcp, smc.Server, conf, p)
	if mute := s.undecided.decided(time.Now(), who, err); mute > 0 {
		s.log.Warn("too many connections from a host, or its network, have said nothing: the next ones are TCP for a time", "remote", who.Host, "time", mute)
		s.hold(who.Origin, mute)
	}
	return c, err
}

// full has nothing announced to those who have their share.
func (s *Stack) full(who rendezvous.Caller, strangers bool) {
	if !strangers {
		s.hold(who.Origin, fullTime)
		return
	}
	u, now := &s.undecided, time.Now()
	u.mu.Lock()
	is := now.Before(u.strangers)
	if !is {
		u.strangers = now.Add(fullTime / 2)
	}
	u.mu.Unlock()
	if !is {
		s.hold(quota.Origin{}, fullTime)
	}
}

// hold has nothing announced to an origin for a time, or, with the zero Origin, to strangers.
func (s *Stack) hold(o quota.Origin, d time.Duration) {
	h, ok := s.opt.marker.(network.Holder)
	if !ok {
		return
	}
	var known []netip.Addr
	s.limit.mu.Lock()
	for m := range s.limit.known.All(time.Now()) {
		if o == (quota.Origin{}) || m.Origin == o {
			known = append(known, m.Host)
		}
	}
	s.limit.mu.Unlock()
	if err := h.Hold(o, d, known); err != nil {
		s.log.Warn("connections of hosts that have their share are announced", "err", err)
	}
}

// notAnnounced is the reason for TCP of a connection of a listener whose SYN-ACK did not announce SMC.
func (s *Stack) notAnnounced(tcp *net.TCPConn) *DeclineError {
	why := s.opt.notAnnounced()
	now := time.Now()
	if s.opt.marker == nil || s.undecided.roomy(now) {
		return why
	}
	if who, valid := s.callerOf(tcp); valid {
		if code := s.undecided.why(now, who); code != 0 {
			why.Code = code
		}
	}
	return why
}
