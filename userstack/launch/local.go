// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"

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
