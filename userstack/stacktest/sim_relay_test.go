// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/userstack"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
	"smcr/userstack/simfabric"
)

// simRelay carries the bytes between a connection and a program like package service: by a
// relay, unless the engine carries them.
type simRelay struct {
	*simfabric.Program // the program's end
	stack              *userstack.Stack
	c                  *userstack.Conn
	k                  inside.Carriage // of c
	sock               *engine.Socket
	relay              relay.Relay

	over atomic.Bool
}

func newSimRelay(e *simEnd, sock *engine.Socket, prog *simfabric.Program) *simRelay {
	r := &simRelay{Program: prog, stack: e.stack, sock: sock}
	r.relay = relay.Relay{
		App: simSocket{r}, ResetProgram: prog.Reset,
		DrainIdle: time.Second + time.Duration(e.p.id), // different for each connection, so that no two limits end at the same time
	}
	return r
}

// start carries the bytes of c. It starts a goroutine only if the engine does not carry
// them.
func (r *simRelay) start(c *userstack.Conn) {
	r.c, r.k = c, inside.StackOf[*userstack.Conn](r.stack).Carriage(c)
	r.relay.Net, r.relay.Detach, r.relay.Ended = c, r.k.Detach, r.k.Ended
	_ = c.SetOOBInline(true)
	r.k.Attach(r.sock)
	r.ride()
}

func (r *simRelay) ride() {
	if !r.k.Ride(func() { go r.work() }) {
		go r.work()
	}
}

// work carries bytes until both directions have ended or the engine carries them.
func (r *simRelay) work() {
	if r.relay.Carry(nil) && r.k.Ride(func() { go r.work() }) {
		return
	}
	r.relay.Finish()
	r.over.Store(true)
}

// Over implements simIO.
func (r *simRelay) Over() bool { return r.over.Load() && isDone(r.c) }

// simSocket reads and writes the end that the loop has, like a relay.Socket with a descriptor.
type simSocket struct{ r *simRelay }

var (
	_ inside.EngineEnd       = simSocket{}
	_ relay.End              = simSocket{}
	_ userstack.UrgentReader = simSocket{}
	_ userstack.UrgentWriter = simSocket{}
)

// Conn implements inside.EngineEnd.
func (s simSocket) Conn() syscall.Conn { return s.r.sock }

// The other methods of relay.End.

func (s simSocket) SetReadDeadline(t time.Time) error { return s.r.sock.SetReadDeadline(t) }
func (s simSocket) CloseWrite() error                 { return s.r.sock.CloseWrite() }
func (s simSocket) Close() error                      { return s.r.sock.Close() }
func (s simSocket) Unread() int                       { return s.r.Unread() }

func (s simSocket) HungUp() bool {
	up, _ := s.r.sock.HungUp()
	return up
}

func (s simSocket) Peek() (n int, err error) {
	n, errno := s.r.sock.Peek()
	if _, failed := s.r.sock.HungUp(); failed && n == 0 && errno == 0 {
		errno = syscall.ECONNRESET // SO_ERROR
	}
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}

func (s simSocket) AwaitHangUp() error { return s.wait(true, s.HungUp) }

func (s simSocket) AwaitInput() (n int, err error) {
	werr := s.wait(true, func() bool {
		n, err = s.Peek()
		return err != syscall.EAGAIN
	})
	if werr != nil {
		return 0, werr
	}
	return n, err
}

// wait calls f until f returns true: at once, and after each event for reading or
// writing.
func (s simSocket) wait(read bool, f func() bool) error {
	rc, err := s.r.sock.SyscallConn()
	if err != nil {
		return err
	}
	if read {
		return rc.Read(func(uintptr) bool { return f() })
	}
	return rc.Write(func(uintptr) bool { return f() })
}

// ReadMark implements UrgentReader.
func (s simSocket) ReadMark(p []byte) (n int, urgent bool, err error) {
	var m engine.Message
	var errno syscall.Errno
	err = s.wait(true, func() bool {
		readable, mark, _ := s.r.sock.Pending()
		if !readable {
			return false
		}
		buf := p
		if urgent = mark; mark {
			buf = p[:1]
		}
		n, errno = s.r.sock.Recv(&m, buf, nil)
		return errno != syscall.EAGAIN
	})
	switch {
	case err != nil:
		return 0, false, err
	case errno != 0:
		return 0, false, os.NewSyscallError("read", errno)
	case n == 0:
		return 0, false, io.EOF
	}
	return n, urgent, nil
}

// Read implements io.Reader.
func (s simSocket) Read(p []byte) (int, error) {
	n, _, err := s.ReadMark(p)
	return n, err
}

// Write implements io.Writer.
func (s simSocket) Write(p []byte) (int, error) { return s.send(p, false) }

// WriteUrgent implements UrgentWriter.
func (s simSocket) WriteUrgent(p []byte) (int, error) { return s.send(p, true) }

func (s simSocket) send(p []byte, urgent bool) (total int, err error) {
	var m engine.Message
	var failed syscall.Errno
	err = s.wait(false, func() bool {
		for total < len(p) {
			var n int
			var errno syscall.Errno
			if urgent {
				n, errno = s.r.SendUrgent(p[total:])
			} else {
				n, errno = s.r.sock.Send(&m, p[total:], nil)
			}
			switch errno {
			case 0:
				total += n
			case syscall.EAGAIN:
				return false
			default:
				failed = errno
				return true
			}
		}
		return true
	})
	if err == nil && failed != 0 {
		err = os.NewSyscallError("write", failed)
	}
	return total, err
}
