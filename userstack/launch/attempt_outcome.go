// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// connectHere connects the socket of a pair that was placed too early.
func (a *attempt) connectHere() {
	fd, err := unix.FcntlInt(uintptr(a.tcp), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		a.self <- broker.Event{Kind: broker.EventFailed, Errno: unix.EMFILE}
		return
	}
	a.s.wg.Go(func() {
		d := broker.NewDescriptor(fd)
		defer d.Close()
		if err := a.s.connector.Connect(a.s.ctx, d, a.remote); err != nil {
			a.self <- broker.Event{Kind: broker.EventFailed, Errno: errnoOr(err, unix.ECONNABORTED)}
			return
		}
		a.self <- broker.Event{Kind: broker.EventEstablished}
	})
}

// smc hands the pair to the service.
func (a *attempt) smc() bool {
	a.began = time.Now()
	if !a.drained() {
		return a.failed(unix.ECONNABORTED)
	}
	return a.attach()
}

// drained takes the junk out of the pair.
func (a *attempt) drained() bool {
	app := a.program()
	err := a.pair.drain(app)
	if app >= 0 {
		_ = unix.Close(app)
	}
	if err != nil {
		a.s.log.Warn("cannot drain a socketpair", "err", err)
	}
	return err == nil
}

// attach reports success and passes the service's end of the drained pair.
func (a *attempt) attach() bool {
	a.succeed()
	a.lone = !a.pass()
	return true
}

// attachTCP does so for a connection over TCP, which the launcher carries itself
// if the service cannot be reached any more.
func (a *attempt) attachTCP() bool {
	a.succeed()
	if !a.pass() {
		a.release() // where the session lives on, the service lets go of its copy
		a.carryHere()
	}
	return true
}

// succeed makes the pair the program's connection and reports that to a
// waiting call.
func (a *attempt) succeed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase = phaseCarried
	a.local = localAddr(a.tcp)
	a.reported = a.answer(0)
}

// native gives the program its TCP socket, which is connected. If the pair is
// in place and nobody waits in connect(), carry takes over when the program
// cannot have it back.
func (a *attempt) native(carry func() bool) bool {
	if !a.swapped {
		return a.nativeDone()
	}
	if a.n != nil {
		err := a.swapBack(a.n)
		if err == nil {
			a.release()
			return a.nativeDone()
		}
		a.s.log.Debug("cannot place the TCP socket", "conn", a.cc.ID(), "err", err)
		if !a.n.valid() { // interrupted, and perhaps restarted soon
			a.n = nil
		}
	}
	if !a.drained() {
		return a.failed(unix.ECONNABORTED)
	}
	if a.n != nil {
		return carry()
	}
	a.carry = carry
	a.watch(unix.EPOLLIN)
	a.await(needDecide, a.s.decide)
	return false
}

func (a *attempt) release() {
	if err := a.cc.Release(); err != nil {
		a.s.log.Debug("cannot release a socket", "err", err)
	}
}

// nativeDone ends an attempt whose TCP socket is in place.
func (a *attempt) nativeDone() bool {
	e := syscall.Errno(0)
	if a.nonblock {
		e = unix.EINPROGRESS
	}
	a.mu.Lock()
	a.phase = phaseNative
	a.reported = a.answer(e) || a.begun
	reported := a.reported
	a.mu.Unlock()
	if reported {
		a.s.unregister(a.tcpInode, a.conn)
	} else {
		// connect() was interrupted; if it is restarted it has to return 0.
		a.s.retire(a.conn)
	}
	return true
}

// failed reports e. Nothing that the service says later changes that.
func (a *attempt) failed(e syscall.Errno) bool {
	a.verdict = true
	disconnect(a.tcp)
	if a.swapped && a.n != nil {
		if err := a.swapBack(a.n); err != nil {
			a.s.log.Debug("cannot place the TCP socket", "conn", a.cc.ID(), "err", err)
		}
	}
	a.mu.Lock()
	a.phase = phaseFailed
	if !a.answer(e) {
		a.err = e
	}
	told := a.err == 0
	a.mu.Unlock()
	if told && !a.swapped {
		a.s.unregister(a.tcpInode, a.conn)
		return true
	}
	a.sub.stop()
	a.sub = nil
	if a.pair != nil {
		app := -1
		if a.swapped {
			app = a.program()
		}
		a.pair.hangUp(app)
		if app >= 0 {
			_ = unix.Close(app)
		}
	}
	a.await(needFailed, failedTime)
	return false
}
