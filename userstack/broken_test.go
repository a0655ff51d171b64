// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"smcr/guard"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// endedTCP is a TCP connection of package net made from a socket that was reset. It has
// no peer, so it has no remote address.
type endedTCP struct {
	TCPConn
	local net.Addr
}

func (c endedTCP) LocalAddr() net.Addr { return c.local }
func (endedTCP) RemoteAddr() net.Addr  { return nil }

// TestSocketThatHasEnded: a RST of the peer may arrive before the rendezvous begins, or
// during it.
func TestSocketThatHasEnded(t *testing.T) {
	for name, local := range map[string]net.Addr{
		"no peer": &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, "no address": nil, "nil of a type": (*net.TCPAddr)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				ct, st := b.tcp()
				defer ct.Close()
				defer st.Close()
				for who, run := range map[string]func(context.Context, TCPConn) (*Conn, error){
					"client": b.client.Client, "server": b.server.Server,
				} {
					if who == "server" {
						raw, err := wire.Proposal{PeerID: peerID, IPv4: prefix(1, 0).Masked()}.AppendBinary(nil)
						if err != nil {
							t.Fatal(err)
						}
						if _, err := ct.Write(raw); err != nil {
							t.Fatal(err)
						}
					}
					_, err := run(t.Context(), endedTCP{st, local})
					wantBroken(t, err, nil)
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("%s: %v, want ECONNRESET", who, err)
					}
				}
				for _, s := range []*Stack{b.client, b.server} {
					st := list(t, s.Control().Stats)
					if n := st.ClientHandshakeErrors + st.ServerHandshakeErrors; n != 1 || st.Panics != 0 {
						t.Errorf("%d handshake errors, %d panics", n, st.Panics)
					}
				}
			})
		})
	}
}

// panicking is a Network that panics once.
type panicking struct {
	simNetwork
	once *sync.Once
}

func (n panicking) Secured(a, b netip.AddrPort) (bool, error) {
	n.once.Do(func() { panic("planted") })
	return n.simNetwork.Secured(a, b)
}

// TestPanicInRendezvous: a panic in a rendezvous ends only this connection.
func TestPanicInRendezvous(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				once := new(sync.Once)
				plant := func(c *Config) { c.network = panicking{c.network.(simNetwork), once} }
				conf := bedConfig{client: plant}
				if who == "server" {
					conf = bedConfig{server: plant}
				}
				b := newBed(t, conf)
				ct, st := b.tcp()
				done := make(chan error, 2)
				go func() {
					_, err := b.server.Server(t.Context(), st)
					st.Close()
					done <- err
				}()
				_, err := b.client.Client(t.Context(), ct)
				ct.Close()
				serr := <-done
				if who == "server" {
					err = serr
				}
				if _, ok := errors.AsType[*guard.Error](err); !ok {
					t.Errorf("%s: %v", who, err)
				}
				_, s := b.side(who)
				if n := list(t, s.Control().Stats).Panics; n != 1 {
					t.Errorf("%d panics counted", n)
				}
				b.finish(b.connect())
			})
		})
	}
}

// TestPanicInGroup: a panic while the lock of a link group is held ends only this link
// group, with all its connections. Later calls of programs return errors. Package driver
// tests panics in other places.
func TestPanicInGroup(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2})
				c1, s1 := b.connect()
				c2, s2 := b.connect()
				other, there := b.otherGroup(t)
				if c1.group() != c2.group() || other.group() == c1.group() && there.group() == s1.group() {
					t.Fatal("not the link groups that this test is about")
				}
				b.exchange(c1, s1, pattern(1, 100_000))
				x, y := c1, c2
				if who == "server" {
					x, y = s1, s2
				}
				read := make(chan error, 1)
				go func() {
					_, err := y.Read(make([]byte, 1))
					read <- err
				}()
				time.Sleep(settled)
				x.group().View(func(*linkgroup.Group) { panic("planted") })
				if err := <-read; !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("a reader got %v", err)
				}
				for _, c := range []*Conn{c1, c2, s1, s2} {
					if err := b.ended(c); err == nil {
						t.Error("a connection of the group ended in order")
					}
					if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNABORTED) {
						t.Errorf("write to it: %v", err)
					}
					_, _ = c.ReadUrgent()
					_ = c.AtMark()
					_ = c.SetOOBInline(true)
					_ = c.SetCork(true)
					_ = c.CloseWrite()
					_ = c.Close()
				}
				_, s := b.side(who)
				if n := list(t, s.Control().Stats).Panics; n != 1 {
					t.Errorf("%d panics counted", n)
				}
				if slices.Contains(groups(s), x.group()) {
					t.Error("the link group is listed")
				}
				b.exchange(other, there, pattern(2, 100_000))
				b.exchange(there, other, pattern(3, 100_000))
				b.finish(other, there)
				b.finish(b.connect())
			})
		})
	}
}

// otherGroup makes a connection from the server's host to the client's. It is in another
// link group, because the roles are exchanged.
func (b *bed) otherGroup(t *testing.T) (c, s *Conn) {
	t.Helper()
	ct, st, err := b.w.Connect(netip.AddrPortFrom(addr(2, 0), 0), netip.AddrPortFrom(addr(1, 0), 80))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var serr error
	wg.Go(func() { s, serr = b.client.Server(context.Background(), st) })
	c, err = b.server.Client(context.Background(), ct)
	wg.Wait()
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	return c, s
}

// panicWriter panics in the code of the program, or lets a test plant a panic while
// WriteTo waits for it.
type panicWriter struct{ f func() }

func (w panicWriter) Write(p []byte) (int, error) { w.f(); return len(p), nil }

func (w panicWriter) Read(p []byte) (int, error) { w.f(); return len(p), nil }

// TestPanicWhileHeld: the buffers of a link group that has ended by a panic are not freed
// while a reader or writer of the program uses them. If the reader or writer panics
// itself, they are freed.
func TestPanicWhileHeld(t *testing.T) {
	for _, who := range []string{"WriteTo", "ReadFrom"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				if _, err := s.Write(pattern(1, 100)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(settled)
				w := panicWriter{func() {
					c.group().View(func(*linkgroup.Group) { panic("planted") })
					if b.client.driver.MemoryInUse() == 0 {
						t.Error("the buffers are freed while one is in use")
					}
				}}
				var err error
				if who == "WriteTo" {
					_, err = c.WriteTo(w)
				} else {
					_, err = c.ReadFrom(w)
				}
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%v, want ECONNRESET", err)
				}
				b.ended(s)
				time.Sleep(time.Minute)
				if n := b.client.driver.MemoryInUse(); n != 0 {
					t.Errorf("%d bytes are not given back", n)
				}
			})
		})
		t.Run(who+" itself", func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				if _, err := s.Write(pattern(1, 100)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(settled)
				err := new(guard.Guard).Do("a program", func() {
					if w := (panicWriter{func() { panic("the program's") }}); who == "WriteTo" {
						_, _ = c.WriteTo(w)
					} else {
						_, _ = c.ReadFrom(w)
					}
				})
				if p, ok := errors.AsType[*guard.Error](err); !ok || p.Value != "the program's" {
					t.Errorf("%v", err)
				}
				if n := list(t, b.client.Control().Stats).Panics; n != 0 {
					t.Errorf("%d panics counted", n)
				}
				got := make([]byte, 100)
				if _, err := io.ReadFull(c, got); err != nil {
					t.Error(err)
				}
				b.finish(c, s)
			})
		})
	}
}

// TestPanicInFirstContact: if a panic ends a link group, the handshakes that wait for it
// fail and leave nothing.
func TestPanicInFirstContact(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				ct, st := b.tcp()
				_, s := b.side(who)
				go func() {
					for {
						if list := groups(s); len(list) > 0 {
							list[0].View(func(*linkgroup.Group) { panic("planted") })
							return
						}
						time.Sleep(time.Microsecond)
					}
				}()
				c, x, cerr, serr := b.rendezvous(ct, st)
				for _, e := range []error{cerr, serr} {
					if e == nil {
						t.Error("a side was not told")
					}
				}
				_, _ = c, x
				ct.Close()
				st.Close()
				if n := list(t, s.Control().Stats).Panics; n != 1 {
					t.Errorf("%d panics counted", n)
				}
				b.finish(b.connect())
			})
		})
	}
}
