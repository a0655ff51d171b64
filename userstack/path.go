// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/driver"
	"smcr/userstack/internal/pathmemory"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// Where TCP passes between two hosts and RoCE does not, each first contact costs a wait. So the
// stack remembers that (package pathmemory), and
//
//	who                                | does
//	-----------------------------------+---------------------------------------------------------
//	a client                           | does not announce SMC: the connection is TCP at once
//	a server                           | declines PROPOSAL at once
//	connections that wait for the      | become TCP when that one fails
//	same first contact                 |
//	one connection, from time to time  | tries, with retrySend or retryAnswer in place of the
//	                                   | times of package linkgroup
//
// A first contact that succeeds ends that, and so does a connection on an existing link group.
// docs/architecture.md, "When RoCE does not pass", has the whole.

// errNoPath is the cause of a DECLINE without a try.
var errNoPath = errors.New("it did not pass before; a connection tries again from time to time")

// noPath is the reason for TCP while a path is blocked.
func noPath() *DeclineError { return &DeclineError{Code: smc.DiagNoPath, Err: errNoPath} }

// Until when a path is tried again at the latest. A client does not propose before, so a server
// may be ready earlier. A client of another kind pays for each try, up to the times of Linux.
const (
	clientPause      = 30 * time.Second
	serverPause      = 8 * time.Second
	serverPauseOther = 45 * time.Second
)

// How long a try waits: the packet is sent again after 20 ms. If it does not arrive because the
// hosts are busy, the next try is not far.
const (
	retrySend   = 40 * time.Millisecond
	retryAnswer = 80 * time.Millisecond
)

// The most that a first contact waits with a peer that answers late. Linux waits 5 s.
const (
	mostSend   = 4300 * time.Millisecond
	mostAnswer = 4500 * time.Millisecond
)

// pathTable is the part of a stack that knows where RoCE does not pass.
type pathTable struct {
	mu    sync.Mutex
	known *pathmemory.Memory
}

// pathOf returns the path of a connection. local is invalid or unspecified if the kernel chooses the address.
func pathOf(rt *network.Route, local, remote netip.Addr) pathmemory.Path {
	if !local.IsValid() || local.IsUnspecified() {
		local = rt.Source
	}
	return pathmemory.Path{IfIndex: rt.IfIndex, Local: local.Unmap().WithZone(""), Remote: remote.Unmap()}
}

// tryPath returns why a connection to remote must not try SMC-R now, or nil. For local, see pathOf.
func (s *Stack) tryPath(rt *network.Route, local, remote netip.Addr) error {
	s.paths.mu.Lock()
	defer s.paths.mu.Unlock()
	if s.paths.known.Try(time.Now(), pathOf(rt, local, remote)) != pathmemory.Blocked {
		return nil
	}
	why := noPath()
	why.uncounted = true
	return why
}

// tryPathTo is tryPath for a connection whose route is not known. Without a route, it has
// nothing against it.
func (s *Stack) tryPathTo(local, remote netip.Addr) error {
	s.paths.mu.Lock()
	none := s.paths.known.Len(time.Now()) == 0
	s.paths.mu.Unlock()
	if none {
		return nil
	}
	rt, err := s.net.Route(local, remote)
	if err != nil {
		return nil
	}
	return s.tryPath(&rt, local, remote)
}

// pathDied takes the end of a link group over which nothing passes any more. Perhaps TCP does not
// pass either: the peer was without power. So the next connection finds out, in little time.
func (s *Stack) pathDied(lan driver.LAN) { s.suspectPath(pathOf(&lan.Route, lan.Local, lan.Remote)) }

// suspectPath has the next connection find out, in little time, whether RoCE passes.
func (s *Stack) suspectPath(p pathmemory.Path) {
	s.paths.mu.Lock()
	defer s.paths.mu.Unlock()
	s.paths.known.Suspect(time.Now(), p)
}

func (s *Stack) pathFailed(p pathmemory.Path, longest time.Duration, err error) {
	s.paths.mu.Lock()
	first := s.paths.known.Failed(time.Now(), p, longest)
	s.paths.mu.Unlock()
	if first {
		s.log.Warn("RoCE does not pass to a peer, although TCP does: connections with it stay TCP. Is UDP port 4791 open in both directions, and is the MTU right on the whole path?", "peer", p.Remote, "address", p.Local, "err", err)
	}
}

// silentPath reports whether err means that RoCE does not pass.
func silentPath(err error) bool {
	var failed *rdmaverbs.CompletionError
	return errors.Is(err, linkgroup.ErrSilent) || errors.As(err, &failed) && failed.Status == rdmaverbs.StatusRetryExcErr
}

// Why a connection was reset, for people.
const (
	resetRetries = "transport retries exceeded"
	resetNoTest  = "the peer did not answer TEST LINK"
)

// resetReason returns why a connection whose path has died was reset, or "".
func resetReason(err error) string {
	var failed *rdmaverbs.CompletionError
	switch {
	case errors.As(err, &failed) && failed.Status == rdmaverbs.StatusRetryExcErr:
		return resetRetries
	case errors.Is(err, linkgroup.ErrTimeout):
		return resetNoTest
	}
	return ""
}

// pathUse is what a rendezvous has to do with its path. is is zero before the path is known.
type pathUse struct {
	s          *Stack
	role       smc.Role
	is         pathmemory.Path
	began      time.Time // of the rendezvous
	sent       time.Time // of the last CLC message
	retry      bool      // the path is blocked, and this one tries it
	tried      bool      // messages were sent over RoCE, in a first contact
	peerIsOurs bool      // the peer is a stack of this module, as far as it is known
}

// ask is Memory.Ask.
func (u *pathUse) ask() pathmemory.Verdict {
	u.s.paths.mu.Lock()
	defer u.s.paths.mu.Unlock()
	return u.s.paths.known.Ask(time.Now(), u.is)
}

// blocked returns an error if the path is blocked.
func (u *pathUse) blocked() error {
	if u.ask() == pathmemory.Blocked {
		return noPath()
	}
	return nil
}

// try begins a server's first contact on the path, or returns an error if it is blocked.
func (u *pathUse) try() error {
	u.s.paths.mu.Lock()
	defer u.s.paths.mu.Unlock()
	v := u.s.paths.known.Try(time.Now(), u.is)
	if u.retry = v == pathmemory.Retry; v == pathmemory.Blocked {
		return noPath()
	}
	return nil
}

// failedMeanwhile begins a client's first contact on the path, which canAnnounce has permitted.
// It returns an error if that of another connection has failed since.
func (u *pathUse) failedMeanwhile() error {
	u.s.paths.mu.Lock()
	defer u.s.paths.mu.Unlock()
	if u.s.paths.known.FailedSince(u.began, u.is) {
		return noPath()
	}
	u.retry = u.s.paths.known.Ask(time.Now(), u.is) != pathmemory.Open
	return nil
}

// serverPace and clientPace return how long the first contact waits: see linkgroup.Pace.
// The time that the peer took for its last CLC message is what a round trip and a wait for a
// processor take with this peer now. A client that is to hear DECLINE waits for it.
func (u *pathUse) serverPace(now time.Time) (send, answer time.Duration) {
	took := now.Sub(u.sent)
	if u.retry {
		return min(max(retrySend, 2*took), linkgroup.FirstSend), min(max(retryAnswer, 3*took), linkgroup.FirstAnswerServer)
	}
	return paced(linkgroup.FirstSend, 4*took), min(max(linkgroup.FirstAnswerServer, 5*took), mostAnswer)
}

func (u *pathUse) clientPace(now time.Time, t *rendezvous.Terms) (send, answer time.Duration) {
	took := now.Sub(u.sent)
	u.peerIsOurs = t.PeerUDPPort() != 0
	if u.retry && !u.peerIsOurs {
		return min(max(retrySend, 2*took), linkgroup.FirstSend), min(max(retryAnswer, 3*took), linkgroup.FirstAnswerClient)
	}
	return paced(linkgroup.FirstSend, 4*took), min(max(linkgroup.FirstAnswerClient, 6*took), mostAnswer)
}

func paced(least, d time.Duration) time.Duration { return min(max(least, d), mostSend) }

// longest returns the longest pause after a failure.
func (u *pathUse) longest() time.Duration {
	switch {
	case u.role == smc.Client:
		return clientPause
	case u.peerIsOurs:
		return serverPause
	}
	return serverPauseOther
}

// failed takes the failure of an LLC exchange. It reports whether RoCE does not pass.
func (u *pathUse) failed(err error) bool {
	if errors.Is(err, linkgroup.ErrNoSign) {
		u.s.suspectPath(u.is)
	}
	if !silentPath(err) {
		return false
	}
	u.s.pathFailed(u.is, u.longest(), err)
	return true
}

// declined takes a DECLINE of the peer.
func (u *pathUse) declined(code smc.Diagnosis) {
	switch {
	case u.is == (pathmemory.Path{}):
	case u.tried && (code == smc.DiagNoPath || code == smc.DiagTimeoutConfLink):
		u.s.pathFailed(u.is, u.longest(), &DeclineError{Remote: true, Code: code})
	case code == smc.DiagNoPath:
		u.s.paths.mu.Lock()
		u.s.paths.known.Told(time.Now(), u.is)
		u.s.paths.mu.Unlock()
	}
}

// works takes the success of a rendezvous.
func (u *pathUse) works() {
	u.s.paths.mu.Lock()
	again := u.s.paths.known.Works(u.is)
	u.s.paths.mu.Unlock()
	if again {
		u.s.log.Info("RoCE passes to a peer again", "peer", u.is.Remote, "address", u.is.Local)
	}
}
