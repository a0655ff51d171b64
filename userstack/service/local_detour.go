// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/oob"
)

var _ broker.Diverter = (*Service)(nil)

// Divert implements broker.Diverter: from here on the relay carries the bytes of
// this side, by its rules of closing.
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
			go x.leave()
		}
	}()
	p, err := newPairStream(s, former, x)
	if err != nil {
		s.log.Error("cannot take over the program's connection", "err", err)
		_ = former.Close()
		dropEnd(end)
		return
	}
	s.relay(ctx, c, h.sock, end, p)
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

// pairStream is the end of a local connection that its program had, as a stream. A
// program has the other end, or a detour of its own.
type pairStream struct {
	sharedUnix
	s *Service
	x *localSide

	once    sync.Once
	reads   sync.Mutex // held by whoever reads
	aborted bool       // guarded by reads
}

func newPairStream(s *Service, former *broker.Descriptor, x *localSide) (*pairStream, error) {
	u, err := takeUnix(former)
	if err != nil {
		return nil, err
	}
	return &pairStream{sharedUnix: sharedUnix{u}, s: s, x: x}, nil
}

// ReadFrom implements stream.
func (p *pairStream) ReadFrom(r io.Reader) (int64, error) {
	to, err := oob.New(p.UnixConn)
	if err != nil {
		return 0, err
	}
	to.PassMark = func() { p.s.tellPeer(p.x, opPassMark) }
	return 0, oob.Copy(to, r.(*oob.Socket))
}

// WriteTo implements stream.
func (p *pairStream) WriteTo(w io.Writer) (int64, error) {
	from, err := oob.New(p.UnixConn)
	if err != nil {
		return 0, err
	}
	to, _ := w.(*oob.Socket)
	buf := make([]byte, 64<<10)
	for {
		n, urgent, err := p.read(from, buf)
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
func (p *pairStream) read(from *oob.Socket, buf []byte) (n int, urgent bool, err error) {
	p.reads.Lock()
	defer p.reads.Unlock()
	if p.aborted {
		return 0, false, net.ErrClosed
	}
	return from.ReadMark(buf)
}

// Close implements stream. No Abort comes after it.
func (p *pairStream) Close() error {
	p.once.Do(func() {})
	return p.sharedUnix.Close()
}

// Abort implements stream. The kernel makes a reset of the other end if something is
// unread in this one, so the launcher there puts a byte into it.
func (p *pairStream) Abort() error {
	first := false
	p.once.Do(func() { first = true })
	if !first {
		return nil
	}
	// A deadline alone would let a read that it wakes take the byte.
	_ = p.SetReadDeadline(time.Unix(1, 0))
	p.reads.Lock()
	p.aborted = true
	p.reads.Unlock()
	unread := 0
	if rc, err := p.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	}
	if unread == 0 {
		p.s.tellPeer(p.x, opBroken)
	}
	return p.sharedUnix.Close()
}

// Done implements stream.
func (p *pairStream) Done() <-chan struct{} { return nil }
