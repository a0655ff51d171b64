// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/relay"
)

var _ broker.Diverter = (*Service)(nil)

// Divert implements broker.Diverter: from now on, the relay carries the bytes of
// this side and applies its rules of closing.
func (s *Service) Divert(ctx context.Context, c *broker.Conn, former, end *broker.Descriptor) {
	h, _ := c.Data().(*held)
	var x *localSide
	if h != nil {
		x = h.localSide()
	}
	if x == nil {
		_ = former.Close()
		dropEnd(end)
		return
	}
	s.local.mu.Lock()
	x.detour = true
	s.local.mu.Unlock()
	defer func() {
		s.local.mu.Lock()
		defer s.local.mu.Unlock()
		x.over = true
		if x.leave != nil {
			go x.leave() // a new goroutine, because the lock is held
		}
	}()
	p, err := newPairStream(s, former, x)
	if err != nil {
		s.log.Error("cannot take over the program's connection", "err", err)
		_ = former.Close()
		dropEnd(end)
		return
	}
	s.local.mu.Lock()
	x.former = p.Socket
	s.local.mu.Unlock()
	s.relay(ctx, c, h.sock, end, p)
}

// place has the launcher give the program of x its end of the pair: see
// broker.Conn.Local.
func (x *localSide) place(ctx context.Context, c *broker.Conn) (placed bool, err error) {
	defer close(x.placed)
	var reset syscall.Errno
	x.f.table.mu.Lock()
	x.c = c
	if x.reset {
		reset = unix.ECONNRESET
	}
	x.f.table.mu.Unlock()
	return c.Local(ctx, x.end(), reset)
}

// A need is what one side of a local connection needs at the other.
type need uint8

const (
	needReset         need = iota // the program there reads a reset: see broker.Conn.Broken
	needUrgentDropped             // see broker.Conn.DropUrgent
)

// launcherTime bounds the wait for the answer of a launcher.
const launcherTime = 3 * time.Second

// carryOut does at side x what the other side needs.
//
// For needReset, a byte must be written into the pair at x: if nobody has read it, the
// kernel turns the close of the other end into a reset.
//
//	x                                        | who writes the byte
//	-----------------------------------------+--------------------------------------
//	the server's, which has not accepted yet | the service; place tells the launcher
//	on a detour                              | the service, which has the former end
//	otherwise                                | the launcher
func (x *localSide) carryOut(ctx context.Context, what need) {
	if what == needReset && x.leaveUnread() {
		return
	}
	x.f.table.mu.Lock()
	c := x.c
	x.f.table.mu.Unlock()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, launcherTime)
	defer cancel()
	select {
	case <-x.placed: // the launcher knows the connection
	case <-ctx.Done():
		return
	}
	if what == needReset {
		_ = c.Broken(ctx, unix.ECONNRESET)
	} else {
		_ = c.DropUrgent(ctx)
	}
}

// leaveUnread writes a byte into the pair at x. It returns false if only the launcher
// can do that.
func (x *localSide) leaveUnread() (left bool) {
	t := x.f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	write := func(fd int) error {
		left = true
		// If it fails, there is unread data already, or the other end is closed.
		return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
	switch {
	case x.former != nil:
		if rc, err := x.former.Conn().SyscallConn(); err == nil {
			_ = rc.Control(func(fd uintptr) { _ = write(int(fd)) })
		}
	case x.c == nil:
		_ = x.end().Control(write)
		x.reset = left
	}
	return left
}

// end returns the end of the pair at x. The service closes it when a program has it.
func (x *localSide) end() *broker.Descriptor {
	if x == &x.f.clientSide {
		return x.f.p
	}
	return x.f.q
}

func (h *held) setSide(x *localSide) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.side = x
}

func (h *held) localSide() *localSide {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.side
}

// pairStream is the former end of the program of a local connection, as a stream. The
// other end belongs to the other program, or to a detour of that program.
type pairStream struct {
	*relay.Socket
	s *Service
	x *localSide

	once    sync.Once
	reads   sync.Mutex // held while a goroutine reads
	aborted bool       // guarded by reads
}

func newPairStream(s *Service, former *broker.Descriptor, x *localSide) (*pairStream, error) {
	u, err := takeUnix(former)
	if err != nil {
		return nil, err
	}
	sock, err := relay.NewSocket(relay.Unix(u))
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	p := &pairStream{Socket: sock, s: s, x: x}
	sock.DropUrgent = func() { x.peer.carryOut(context.Background(), needUrgentDropped) }
	return p, nil
}

// ReadFrom implements relay.Stream.
func (p *pairStream) ReadFrom(r io.Reader) (int64, error) {
	from, ok := r.(*relay.Socket)
	if !ok {
		return 0, fmt.Errorf("service: a detour from a %T", r)
	}
	return 0, relay.Copy(p.Socket, from)
}

// WriteTo implements relay.Stream.
func (p *pairStream) WriteTo(w io.Writer) (int64, error) {
	to, _ := w.(*relay.Socket)
	buf := make([]byte, 64<<10)
	for {
		n, urgent, err := p.read(buf)
		switch {
		case err == io.EOF:
			return 0, nil
		case err != nil:
			return 0, err
		case urgent && to != nil:
			_, err = to.WriteUrgent(buf[:n])
		default:
			_, err = w.Write(buf[:n])
		}
		if err != nil {
			return 0, err
		}
	}
}

// read reads unless Abort was called.
func (p *pairStream) read(buf []byte) (n int, urgent bool, err error) {
	p.reads.Lock()
	defer p.reads.Unlock()
	if p.aborted {
		return 0, false, net.ErrClosed
	}
	return p.ReadMark(buf)
}

// Close implements relay.Stream. Abort must not be called after it.
func (p *pairStream) Close() error {
	p.once.Do(func() {})
	return p.Socket.Close()
}

// Abort implements relay.Stream. The kernel resets the other end if this end has
// unread data at its close, so the other side writes a byte.
func (p *pairStream) Abort() error {
	first := false
	p.once.Do(func() { first = true })
	if !first {
		return nil
	}
	// With only a deadline, a read that it wakes could still take the byte.
	_ = p.SetReadDeadline(time.Unix(1, 0))
	p.reads.Lock()
	p.aborted = true
	p.reads.Unlock()
	if p.Unread() == 0 && !p.HungUp() {
		p.x.peer.carryOut(context.Background(), needReset)
	}
	return p.Socket.Close()
}

// Done implements relay.Stream.
func (p *pairStream) Done() <-chan struct{} { return nil }
