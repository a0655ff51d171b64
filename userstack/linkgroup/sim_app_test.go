// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// app is a program at one end of a connection. It writes a stream that only
// its position determines, and checks what it reads.
type app struct {
	h        *host
	c        *Conn
	other    *app
	id       int
	ready    bool
	readyErr error
	open     bool
	closed   bool
	closeErr error

	total   uint64 // to write
	wrote   uint64
	read    uint64
	done    bool // CloseWrite or Close called
	eof     bool
	chunk   int
	abortAt uint64 // abort after that many bytes were written or read
	aborted bool
	slow    time.Duration // between reads
	// closeEarly closes without waiting for the peer's end.
	closeEarly bool
	manual     bool
	queued     bool
}

func streamByte(id int, role smc.Role, pos uint64) byte {
	x := pos*0x9E3779B97F4A7C15 + uint64(id)*31 + uint64(role)*7
	return byte(x >> 56)
}

func (p *app) wake() {
	if p.queued || p.manual {
		return
	}
	p.queued = true
	p.h.s.after(p.h.s.delay(), func() {
		p.queued = false
		if p.open && !p.closed && !p.manual {
			p.step()
			p.h.drain()
		}
	})
}

// step does some reading and some writing.
func (p *app) step() {
	s := p.h.s
	again := false
	if p.abortAt > 0 && p.wrote+p.read >= p.abortAt && !p.aborted {
		p.aborted = true
		p.c.Abort(s.now)
		return
	}
	if !p.eof && !(p.done && p.appClosed()) {
		n := p.readSome(1 + s.rng.IntN(p.chunk))
		if n > 0 {
			again = true
		} else if p.c.ReadErr() != nil {
			p.eof = true
		}
	}
	if !p.done {
		n := p.writeSome(1 + s.rng.IntN(p.chunk))
		if n > 0 && p.wrote < p.total {
			again = true
		}
		if p.wrote == p.total && !p.appClosed() {
			if p.closeEarly {
				p.c.Close(s.now)
			} else {
				p.c.CloseWrite(s.now)
			}
			p.done = true
		}
		if p.c.WriteErr() != nil {
			p.done = true
		}
	}
	if p.done && p.eof && !p.appClosed() {
		p.c.Close(s.now)
	}
	if again {
		if p.slow > 0 {
			p.queued = true
			s.after(p.slow, func() { p.queued = false; p.wake() })
		} else {
			p.wake()
		}
	}
}

func (p *app) readSome(limit int) int {
	a, b := p.c.RecvData()
	n := 0
	for _, part := range [][]byte{a, b} {
		for _, got := range part {
			if n == limit {
				break
			}
			if want := streamByte(p.id, 1-p.h.role, p.read); got != want {
				p.h.s.t.Fatalf("conn %d %s: byte %d is %#x, want %#x", p.id, p.h.role, p.read, got, want)
			}
			p.read++
			n++
		}
	}
	if n > 0 {
		p.c.Consumed(p.h.s.now, n)
	}
	return n
}

func (p *app) writeSome(limit int) int {
	a, b, err := p.c.SendSpace(1, min(limit, int(p.total-p.wrote)))
	if err != nil {
		p.h.s.t.Fatal(err)
	}
	n := 0
	for _, part := range [][]byte{a, b} {
		for i := range part {
			if n == limit || p.wrote == p.total {
				break
			}
			part[i] = streamByte(p.id, p.h.role, p.wrote)
			p.wrote++
			n++
		}
	}
	p.c.Produced(p.h.s.now, n)
	return n
}

func (h *host) newApp(id int, code smc.SizeCode, sbuf int) (*app, error) {
	c, err := h.g.NewConn(h.s.now, code, sbuf)
	if err != nil {
		return nil, err
	}
	p := &app{h: h, c: c, id: id, chunk: 8000}
	h.apps[c] = p
	c.Data = p
	h.drain()
	return p, nil
}

// connectFirst runs the first contact with one connection.
func (s *sim) connectFirst(code smc.SizeCode, sbuf int) (srv, cli *app) {
	s.t.Helper()
	sh, ch := s.hosts[smc.Server], s.hosts[smc.Client]
	if _, err := sh.g.FirstLink(s.now); err != nil {
		s.t.Fatal(err)
	}
	if _, err := ch.g.FirstLink(s.now); err != nil {
		s.t.Fatal(err)
	}
	s.conns++
	var err error
	if srv, err = sh.newApp(s.conns, code, sbuf); err != nil {
		s.t.Fatal(err)
	}
	if cli, err = ch.newApp(s.conns, code, sbuf); err != nil {
		s.t.Fatal(err)
	}
	accept, confirm := srv.c.Local(), cli.c.Local()
	s.after(s.delay(), func() {
		if err := ch.g.ConnectFirst(s.now, accept); err != nil {
			s.t.Error(err)
		}
		ch.drain()
		s.after(s.delay(), func() {
			if sh.gone {
				return
			}
			if err := sh.g.ConnectFirst(s.now, confirm); err != nil {
				s.t.Error(err)
			}
			sh.drain()
		})
	})
	s.run(30*time.Second, func() bool {
		for _, h := range s.hosts {
			if h.firstN == 0 {
				return false
			}
		}
		return true
	})
	for _, h := range s.hosts {
		if h.firstN != 1 {
			s.t.Fatalf("%s: %d outcomes of the first contact", h.role, h.firstN)
		}
	}
	if sh.first != nil || ch.first != nil {
		return srv, cli
	}
	srv.other, cli.other = cli, srv
	srv.attach(confirm)
	cli.attach(accept)
	return srv, cli
}

func (p *app) attach(peer ConnParams) {
	if err := p.c.Attach(p.h.s.now, peer); err != nil {
		p.h.s.t.Logf("attach: %v", err)
		p.c.Cancel(p.h.s.now)
		p.closed = true
	}
	p.open = true
	p.h.drain()
	p.wake()
}

// connect runs a subsequent contact in the background.
func (s *sim) connect(code smc.SizeCode, sbuf int, edit func(srv, cli *app)) {
	sh, ch := s.hosts[smc.Server], s.hosts[smc.Client]
	s.conns++
	id := s.conns
	if !sh.g.CanAccept() {
		return
	}
	srv, err := sh.newApp(id, code, sbuf)
	if err != nil {
		return
	}
	fail := func(ps ...*app) {
		for _, p := range ps {
			p.c.Cancel(s.now)
			p.closed = true
			p.h.drain()
		}
	}
	var wait func(p *app, then func())
	wait = func(p *app, then func()) {
		if !p.ready {
			s.after(100*time.Microsecond, func() { wait(p, then) })
			return
		}
		then()
	}
	wait(srv, func() {
		if srv.readyErr != nil {
			fail(srv)
			return
		}
		accept := srv.c.Local()
		s.after(s.delay(), func() {
			if ch.gone || !ch.g.HasLink(accept.Link.GID, accept.Link.MAC, accept.Link.QPN) {
				s.after(s.delay(), func() { fail(srv) }) // DECLINE
				return
			}
			cli, err := ch.newApp(id, code, sbuf)
			if err != nil {
				s.after(s.delay(), func() { fail(srv) })
				return
			}
			wait(cli, func() {
				if cli.readyErr != nil || cli.c.Attach(s.now, accept) != nil {
					fail(cli)
					s.after(s.delay(), func() { fail(srv) })
					return
				}
				if edit != nil {
					edit(srv, cli)
				}
				srv.other, cli.other = cli, srv
				confirm := cli.c.Local()
				cli.open = true
				ch.drain()
				cli.wake()
				s.after(s.delay()+s.slowConfirm, func() {
					err := ErrGroupDead
					if !sh.gone && !srv.closed {
						err = srv.c.Attach(s.now, confirm)
					}
					if err == nil {
						srv.open = true
						sh.drain()
						srv.wake()
						return
					}
					fail(srv)
					s.refused = append(s.refused, err)
					// The TCP connection breaks.
					cli.c.TCPClosed(s.now, true)
					ch.drain()
				})
			})
		})
	})
}

// pair makes two hosts with an open group and one open connection.
func pair(t testing.TB, seed uint64, srvDevs, cliDevs int, edit func(*Config)) (s *sim, srv, cli *app) {
	t.Helper()
	s = newSim(t, seed)
	s.addHost(smc.Server, srvDevs, edit)
	s.addHost(smc.Client, cliDevs, edit)
	srv, cli = s.connectFirst(0, 16<<10)
	if err := errors.Join(s.hosts[0].first, s.hosts[1].first); err != nil {
		t.Fatal(err)
	}
	srv.manual, cli.manual = true, true
	s.runUntilIdle()
	return s, srv, cli
}

// finish ends both groups and checks that nothing is left.
func (s *sim) finish() {
	s.t.Helper()
	for _, h := range s.hosts {
		if !h.gone {
			h.g.Terminate(s.now, wire.DeleteLinkProgram)
			h.drain()
		}
	}
	s.run(time.Minute, func() bool { return s.hosts[0].gone && s.hosts[1].gone })
	s.runUntilIdle()
	for _, h := range s.hosts {
		if h.deadN != 1 {
			s.t.Errorf("%s: group died %d times", h.role, h.deadN)
		}
		if at, ok := h.g.Deadline(); ok {
			s.t.Errorf("%s: timer %v left", h.role, at.Sub(epoch))
		}
		if len(h.rmbs) > 0 || len(h.chunks) > 0 {
			s.t.Errorf("%s: %d RMBs and %d chunks of send memory left", h.role, len(h.rmbs), len(h.chunks))
		}
		for _, p := range h.apps {
			if !p.closed {
				s.t.Errorf("%s: connection %d did not end, state %s", h.role, p.id, p.c.State())
			}
		}
		if h.g.Conns() != 0 {
			s.t.Errorf("%s: %d connections left", h.role, h.g.Conns())
		}
	}
	if len(s.qps) > 0 {
		s.t.Errorf("%d queue pairs left", len(s.qps))
	}
}

// checkRMBEs says whether two live connections share an element.
func (s *sim) checkRMBEs() {
	for _, h := range s.hosts {
		var list []*Conn
		for c := range h.apps {
			if c.Info().RMBE > 0 {
				list = append(list, c)
			}
		}
		for i, a := range list {
			for _, b := range list[:i] {
				if a.rmb == b.rmb && a.elem == b.elem {
					s.t.Fatalf("%s: two connections share an RMB element", h.role)
				}
			}
		}
	}
}

// appClosed reports whether the program has closed its connection, and nothing else
// has ended it.
func (p *app) appClosed() bool { return errors.Is(p.c.WriteErr(), conn.ErrClosed) }
