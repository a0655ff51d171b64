// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/network"
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
	if !sameSocket(former, x.end()) {
		// It is not what the launcher was given, or the connection has been reset.
		s.log.Info("a detour is refused", "launcher", c.Launcher().PID)
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
		for _, f := range x.then {
			// A new goroutine, because the lock is held.
			go x.f.table.guarded(f)()
		}
		x.then = nil
	}()
	p, err := newPairStream(former, x)
	if err != nil {
		s.log.Error("cannot take over the program's connection", "err", err)
		_ = former.Close()
		dropEnd(end)
		return
	}
	s.relay(ctx, c, h.sock, end, p)
}

// sameSocket reports whether two descriptors are open and of one socket.
func sameSocket(a, b *broker.Descriptor) bool {
	var cookies [2]uint64
	for i, d := range []*broker.Descriptor{a, b} {
		if d.Control(func(fd int) error { cookies[i] = network.Cookie(fd); return nil }) != nil {
			return false
		}
	}
	return cookies[0] != 0 && cookies[0] == cookies[1]
}

// place has the launcher give the program of x its end of the pair: see
// broker.Conn.Local.
func (x *localSide) place(ctx context.Context, c *broker.Conn) (placed bool, err error) {
	defer close(x.placed)
	x.f.table.mu.Lock()
	x.c = c
	x.f.table.mu.Unlock()
	return c.Local(ctx, x.end())
}

// launcherTime bounds the wait for the answer of a launcher.
const launcherTime = 3 * time.Second

// dropUrgent has the launcher of x drop an urgent byte that its program has not read.
func (x *localSide) dropUrgent(ctx context.Context) {
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
		_ = c.DropUrgent(ctx)
	case <-ctx.Done():
	}
}

// end returns the end of the pair at x.
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
	once sync.Once
}

func newPairStream(former *broker.Descriptor, x *localSide) (*pairStream, error) {
	u, err := takeUnix(former)
	if err != nil {
		return nil, err
	}
	sock, err := relay.NewSocket(relay.Unix(u))
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	sock.DropUrgent = func() { x.peer.dropUrgent(context.Background()) }
	return &pairStream{Socket: sock}, nil
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
		n, urgent, err := p.ReadMark(buf)
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

// Close implements relay.Stream. Abort must not be called after it.
func (p *pairStream) Close() error {
	p.once.Do(func() {})
	return p.Socket.Close()
}

// Abort implements relay.Stream. The holder resets the peer.
func (p *pairStream) Abort() error {
	first := false
	p.once.Do(func() { first = true })
	if !first {
		return nil
	}
	if rc, err := p.Conn().SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
	}
	return p.Socket.Close()
}

// Done implements relay.Stream.
func (p *pairStream) Done() <-chan struct{} { return nil }
