// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// A connection between two programs of one host is a socketpair of which each has
// an end. The service made it and gives the program's end (broker.EventLocal);
// nobody else has one, so there is no keeper, and nothing to relay or to reset.

// ReasonNotPlaced tells of a connection to a program of the same host that is TCP.
const ReasonNotPlaced = "the call was interrupted before the connection could be local"

// localPairOf makes a pair of which only the program's end is here.
func localPairOf(d *broker.Descriptor, tcp int) (*pair, error) {
	p := &pair{app: d.Take(), end: -1, sndbuf: pairSndbuf}
	var st unix.Stat_t
	if err := unix.Fstat(p.app, &st); err != nil {
		p.close()
		return nil, os.NewSyscallError("fstat", err)
	}
	p.inode = st.Ino
	p.carryOptions(tcp)
	if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_SNDBUF, p.sndbuf); err != nil {
		p.close()
		return nil, os.NewSyscallError("setsockopt SO_SNDBUF", err)
	}
	return p, nil
}

// goLocal makes the end that the service gave the program's connection, or leaves it
// TCP, which it is as well.
func (a *attempt) goLocal(ev broker.Event) bool {
	if !a.placeLocal(ev.End) {
		a.verdict = true
		a.s.stats.tcp(ReasonNotPlaced)
		a.release()
		return a.native(a.relay)
	}
	a.verdict = true
	a.began, a.oneHost = time.Now(), true
	a.s.stats.mode(broker.ModeLocal)
	if err := a.cc.Proceed(); err != nil {
		a.s.log.Debug("cannot answer the service", "conn", a.cc.ID(), "err", err)
	}
	if a.nonblock {
		a.answer(unix.EINPROGRESS)
	}
	a.succeed()
	return true
}

// placeLocal swaps the end in by the call that waits. It reports false where there
// is none, or another pair is in place.
func (a *attempt) placeLocal(end *broker.Descriptor) bool {
	if end == nil {
		return false
	}
	defer end.Close() //nolint:errcheck // unless it is taken
	if a.swapped || a.n == nil {
		return false
	}
	p, err := localPairOf(end, a.tcp)
	if err == nil {
		err = unix.SetNonblock(p.app, a.nonblock)
	}
	if err == nil {
		a.mu.Lock()
		a.pair = p
		a.mu.Unlock()
		err = a.swapIn(a.n, a.nonblock)
	}
	if err == nil {
		return true
	}
	a.s.log.Debug("cannot place a local connection", "conn", a.cc.ID(), "err", err)
	if p != nil {
		a.mu.Lock()
		a.pair = nil
		a.mu.Unlock()
		p.close()
	}
	if !a.n.valid() {
		a.n = nil
	}
	return false
}

// offeredLocal makes an accepted connection of the end that the service gave. It
// returns false if a is unusable.
func (l *listener) offeredLocal(a *accepted, b Broker, cc *broker.ClientConn, end *broker.Descriptor) bool {
	var err error
	if end != nil {
		a.pair, err = localPairOf(end, a.sock)
	}
	if a.pair == nil {
		// This process has no descriptor left, and the peer takes the connection
		// for made.
		l.s.log.Warn("connection dropped", "remote", a.remote, "err", err)
		_ = cc.Cancel()
		return false
	}
	a.cc, a.broker, a.local = cc, b, true
	l.s.stats.mode(broker.ModeLocal)
	return true
}

// passLocal lets go of the TCP socket: the service has it, and needs no end.
func (a *accepted) passLocal() {
	if !a.passed {
		_ = unix.Close(a.sock)
		a.passed, a.served, a.c.unready = true, true, false
	}
}
