// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/userstack/engine"
	"smcr/userstack/relay"
	"smcr/userstack/simfabric"
)

// simRelay stands for the relay of package service, which imports this one: it
// has the engine carry the bytes between a connection and a program's socketpair,
// and maps the ends of the two onto each other by the same rules.
type simRelay struct {
	*simfabric.Program // its end
	e                  *simEnd
	c                  *Conn
	sock               *engine.Socket

	once    sync.Once
	linger0 atomic.Bool // the program closes with a reset
	appUp   atomic.Bool // the program has closed, or both sides have their writing
	peerEOF atomic.Bool // the program is told that the peer sends no more
	lost    atomic.Bool // data came for a program that had gone
	over    atomic.Bool
	rides   atomic.Bool   // neither direction has anything to do
	left    chan struct{} // closed when the launcher has gone
	upRead  chan struct{} // closed once nothing more is read of what the program writes
}

func newSimRelay(e *simEnd, sock *engine.Socket, prog *simfabric.Program) *simRelay {
	return &simRelay{Program: prog, e: e, sock: sock, left: make(chan struct{})}
}

// start carries the bytes of c, without a goroutine as long as it rides.
func (r *simRelay) start(c *Conn) {
	r.c = c
	_ = c.SetOOBInline(true)
	c.Attach(r.sock)
	r.ride()
}

func (r *simRelay) ride() {
	if !r.c.Ride(func() { go r.work() }) {
		go r.work()
	}
}

// work carries until both directions are over, or the connection rides on.
func (r *simRelay) work() {
	r.carry()
	if r.rides.Load() && r.c.Ride(func() { go r.work() }) {
		return
	}
	r.c.Detach()
	_ = r.c.Close()
	_ = r.sock.Close()
	r.over.Store(true)
}

func (r *simRelay) carry() {
	r.rides.Store(false)
	r.upRead = make(chan struct{})
	done := make(chan struct{})
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		select {
		case <-r.c.Done():
		case <-r.left:
		case <-done:
		}
		select {
		case <-done: // first, for one seed to tell one story
		default:
			r.cut()
		}
	}()
	var wg sync.WaitGroup
	wg.Go(r.up)
	wg.Go(r.down)
	wg.Wait()
	close(done)
	<-watcher
}

// Over implements simIO.
func (r *simRelay) Over() bool { return r.over.Load() && simDirect{r.c}.Over() }

// Abort implements simIO: SO_LINGER with 0, and close.
func (r *simRelay) Abort() error {
	r.linger0.Store(true)
	return r.Close()
}

// orphan ends what a program left behind that was killed with its launcher.
func (r *simRelay) orphan() {
	close(r.left)
	r.c.Recall()
}

// cut ends both sides abortively.
func (r *simRelay) cut() {
	r.once.Do(func() {
		_ = r.c.Abort()
		r.c.Detach()
		if !r.appUp.Load() {
			_ = r.sock.SetReadDeadline(time.Unix(1, 0))
			<-r.upRead
			r.Break()
		}
		_ = r.sock.Close()
	})
}

// up carries what the program writes.
func (r *simRelay) up() {
	_, err := r.c.ReadFrom(simSocket{r})
	close(r.upRead)
	if errors.Is(err, relay.ErrRides) {
		r.rides.Store(true)
		return
	}
	if errors.Is(err, syscall.EPIPE) {
		err = r.awaitWrite()
	}
	if err != nil {
		if errors.Is(err, syscall.ECONNRESET) && r.HungUp() {
			r.appUp.Store(true)
		}
		r.cut()
		return
	}
	if !r.HungUp() {
		if r.c.CloseWrite() != nil {
			r.cut()
			return
		}
		if err := (simSocket{r}).wait(true, r.HungUp); err != nil {
			return
		}
	}
	r.appUp.Store(true)
	_, unread := r.Peek()
	if r.linger0.Load() && !r.peerEOF.Load() || r.lost.Load() || unread == syscall.ECONNRESET {
		_ = r.c.Abort()
		return
	}
	_ = r.c.Close()
}

// awaitWrite waits until the program writes to a connection whose peer has
// closed, or ends its side.
func (r *simRelay) awaitWrite() (err error) {
	werr := simSocket{r}.wait(true, func() bool {
		switch n, errno := r.Peek(); {
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			err = errno
		case n > 0:
			err = syscall.EPIPE
		}
		return true
	})
	return errors.Join(err, werr)
}

// simLastWords is how long the connection of a program that has gone takes what the
// program wrote, when the peer goes on sending.
const simLastWords = time.Second

// down carries what the peer sends.
func (r *simRelay) down() {
	_, err := r.c.WriteTo(simSocket{r})
	switch {
	case err == nil:
		r.peerEOF.Store(true)
		_ = r.sock.CloseWrite()
	case errors.Is(err, relay.ErrRides):
	case errors.Is(err, net.ErrClosed):
	case errors.Is(err, syscall.EPIPE) && r.HungUp():
		r.lost.Store(true)
		select {
		case <-r.upRead:
		case <-time.After(simLastWords + time.Duration(r.e.p.id)):
		}
		r.appUp.Store(true)
		r.cut()
	default:
		r.cut()
	}
}

// simSocket reads and writes the loop's end of a pair as package oob does a
// descriptor.
type simSocket struct{ r *simRelay }

var (
	_ Carried      = simSocket{}
	_ UrgentReader = simSocket{}
	_ UrgentWriter = simSocket{}
)

// Conn implements Carried.
func (s simSocket) Conn() syscall.Conn { return s.r.sock }

// wait calls f until it is true, again after each event for reading or writing.
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
		n, _, errno = s.r.sock.Recv(&m, buf, nil)
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
