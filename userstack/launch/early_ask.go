// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import "golang.org/x/sys/unix"

// This file asks the service about connections that were accepted early.

// maxAsking is about how many connections of a listener the service is asked at the same
// time. The more there are, the longer each takes, and their hosts do not take turns any more.
const maxAsking = 64

// askMore asks the service about the next connections. l.mu is held.
func (l *listener) askMore() {
	for l.asking < maxAsking && l.todo.len() > 0 {
		l.ask(l.todo.take())
	}
}

// ask asks the service about a. l.mu is held.
func (l *listener) ask(a *accepted) {
	l.asking++
	l.s.tasks.begin(earlyTask, func() {
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.asking--
			l.askMore()
		}()
		l.offerEarly(a)
	})
}

// offerEarly offers a connection that was accepted early to the service, which
// begins the handshake.
func (l *listener) offerEarly(a *accepted) {
	defer close(a.done)
	usable := l.offered(a)
	switch {
	case l.dropped(a):
	case usable:
		l.goOn(a)
	default:
		a.unusable = !l.makeReset(a)
	}
}

// dropped closes a if its peer speaks SMC, has left before its rendezvous, and no call has got
// it. The kernel's SMC does not show such connections to the program either. A flood of them
// would keep the program from its other clients. The last one stays: the program may have been
// told that there is one, and a call of accept() that blocks must find it.
func (l *listener) dropped(a *accepted) bool {
	if a.pair != nil || !a.hasLeft() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spare.len() < 2 || !l.spare.remove(a) {
		return false
	}
	l.s.earlyHeld.give()
	_ = unix.Close(a.sock)
	return true
}

// hasLeft reports whether the peer speaks SMC, and has sent nothing before it closed or reset
// the connection. One that has closed its side after a rendezvous may still want to read.
func (a *accepted) hasLeft() bool {
	// A read, also with MSG_PEEK, would take the error of a reset from the program.
	info, err := unix.GetsockoptTCPInfo(a.sock, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || !nothingUnread(a.sock) {
		return false
	}
	switch info.State {
	case unix.BPF_TCP_CLOSE_WAIT:
		return a.left
	case unix.BPF_TCP_CLOSE: // reset
		return a.left || !a.saved && a.readSYN() == synWith
	}
	return false
}

// nothingUnread reports whether a TCP connection has no data to read.
func nothingUnread(sock int) bool {
	n, err := unix.IoctlGetInt(sock, unix.SIOCINQ)
	return err == nil && n == 0
}
