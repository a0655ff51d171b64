// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// traffic sends data in both directions on a connection until end is called or the
// connection fails.
type traffic struct {
	c, s *userstack.Conn
	stop chan struct{}
	wg   sync.WaitGroup
	errs [4]error // of the writers and readers
	n    [2]int   // bytes received
}

// startTraffic starts the writers and readers. The readers check that each byte arrives
// once and in order.
func startTraffic(t *testing.T, c, s *userstack.Conn, seed uint64) *traffic {
	x := &traffic{c: c, s: s, stop: make(chan struct{})}
	for i, e := range [][2]*userstack.Conn{{c, s}, {s, c}} {
		from, to := e[0], e[1]
		streamSeed := seed*2 + uint64(i)
		x.wg.Go(func() {
			r := rand.New(rand.NewPCG(streamSeed, 7))
			src := newStream(streamSeed)
			buf := make([]byte, 40<<10)
			for {
				select {
				case <-x.stop:
					x.errs[i] = from.CloseWrite()
					return
				default:
				}
				p := buf[:1+r.IntN(2000)]
				if r.IntN(8) == 0 {
					p = buf[:1+r.IntN(len(buf))]
				}
				src.fill(p)
				if _, err := from.Write(p); err != nil {
					x.errs[i] = err
					return
				}
				time.Sleep(time.Duration(r.IntN(40000)) * time.Microsecond)
			}
		})
		x.wg.Go(func() {
			want := newStream(streamSeed)
			got, exp := make([]byte, 20<<10), make([]byte, 20<<10)
			for {
				n, err := to.Read(got)
				want.fill(exp[:n])
				if !bytes.Equal(got[:n], exp[:n]) {
					t.Errorf("stream %d differs after %d bytes", streamSeed, x.n[i])
					return
				}
				x.n[i] += n
				if err != nil {
					if err != io.EOF {
						x.errs[2+i] = err
					}
					return
				}
			}
		})
	}
	return x
}

// end stops the writers, waits for the readers and returns the errors.
func (x *traffic) end() error {
	close(x.stop)
	x.wg.Wait()
	return errors.Join(x.errs[:]...)
}

// stream is a reproducible sequence of bytes.
type stream struct {
	r *rand.PCG
	w uint64
	n int // bytes left in w
}

func newStream(seed uint64) *stream { return &stream{r: rand.NewPCG(seed, 0x57)} }

func (s *stream) fill(p []byte) {
	for len(p) > 0 {
		if s.n == 0 {
			for len(p) >= 8 {
				binary.LittleEndian.PutUint64(p, s.r.Uint64())
				p = p[8:]
			}
			if len(p) == 0 {
				return
			}
			s.w, s.n = s.r.Uint64(), 8
		}
		p[0] = byte(s.w)
		p = p[1:]
		s.w >>= 8
		s.n--
	}
}

// detection is longer than all retries of a queue pair with an unacknowledged request, with
// the default of userstack.Config.StallTime.
const detection = userstack.DefaultStallTime * 16 / 7

// TestLastLinkLost makes the only link fail. Connections that write, read or are idle are
// reset.
func TestLastLinkLost(t *testing.T) {
	tests := []struct {
		name string
		do   func(b *bed)
	}{
		{"ClientDeviceGone", func(b *bed) { b.ch.Remove("eth0") }},
		{"ServerDeviceGone", func(b *bed) { b.sh.Remove("eth0") }},
		{"ClientPortDown", func(b *bed) { b.ch.SetPort("eth0", false) }},
		{"ServerPortDown", func(b *bed) { b.sh.SetPort("eth0", false) }},
		{"SwitchDown", func(b *bed) { b.w.SetLAN("lan", false) }},
		{"ServerVanished", func(b *bed) { b.sh.SetVanished(true) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bedtest.Bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				busyC, busyS := b.connect()
				idleC, idleS := b.connect()
				x := startTraffic(t, busyC, busyS, 1)
				errs := make(chan error, 2)
				go func() { errs <- readByte(idleC) }()
				go func() { errs <- readByte(idleS) }()
				time.Sleep(100 * time.Millisecond)
				start := time.Now()
				tt.do(b)
				x.wg.Wait()
				if d := time.Since(start); d > detection {
					t.Errorf("busy connection ended after %v", d)
				}
				for i, err := range x.errs {
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("goroutine %d of the busy connection: %v, want ECONNRESET", i, err)
					}
				}
				for range 2 {
					if err := <-errs; !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("idle connection: %v, want ECONNRESET", err)
					}
				}
				if d := time.Since(start); d > 30*time.Second+detection {
					t.Errorf("idle connection ended after %v", d)
				}
				for _, c := range []*userstack.Conn{busyC, busyS, idleC, idleS} {
					if err := b.ended(c); err == nil {
						t.Error("connection ended in order")
					}
					c.Close()
				}
			})
		})
	}
}

// TestPeerVanishesUnderIdleConnection checks that TEST LINK finds a peer that does not
// answer, although no data is sent.
func TestPeerVanishesUnderIdleConnection(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.exchange(c, s, []byte("hello"))
		time.Sleep(10 * time.Millisecond) // longer than a message takes
		b.sh.SetVanished(true)
		start := time.Now()
		if err := readByte(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
		timers := linkgroup.DefaultTimers(smc.Client)
		if d := time.Since(start); d < timers.TestLink-time.Second || d > timers.TestLink+detection+time.Second {
			t.Errorf("noticed after %v", d)
		}
	})
}

// TestKeepAlive: TCP_KEEPIDLE sets the time after which a peer that does not answer is
// found.
func TestKeepAlive(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.exchange(c, s, []byte("hello"))
		time.Sleep(10 * time.Millisecond) // longer than a message takes
		if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second}); err != nil {
			t.Fatal(err)
		}
		b.sh.SetVanished(true)
		start := time.Now()
		if err := readByte(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
		if d := time.Since(start); d < 4*time.Second || d > 4*time.Second+detection+time.Second {
			t.Errorf("noticed after %v", d)
		}
	})
}

// TestStackReplaced ends the server's stack without a message and starts another one
// in its place: the client must not put connections on the old link group.
func TestStackReplaced(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		// The messages of the old stack do not arrive at its end.
		b.w.SetLAN("lan", false)
		if err := b.server.Close(); err != nil {
			t.Error(err)
		}
		b.w.SetLAN("lan", true)
		b.server = b.stack(b.sh, nil)
		c2, s2 := b.connect()
		if inspect(b.client).GroupOf(c2) == inspect(b.client).GroupOf(c) {
			t.Error("new connection is on the dead link group")
		}
		b.exchange(c2, s2, bedtest.Pattern(1, 1000))
		if err := b.ended(c); err == nil {
			t.Error("connection to the dead stack ended in order")
		}
		b.ended(s)
		b.finish(c2, s2)
	})
}

// TestClientReplaced does the same with the stack of the client. The server must not use
// the old link group, because the new stack has another peer ID.
func TestClientReplaced(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.w.SetLAN("lan", false)
		if err := b.client.Close(); err != nil {
			t.Error(err)
		}
		b.w.SetLAN("lan", true)
		b.client = b.stack(b.ch, nil)
		c2, s2 := b.connect()
		if inspect(b.server).GroupOf(s2) == inspect(b.server).GroupOf(s) {
			t.Error("new connection is on the dead link group")
		}
		b.exchange(c2, s2, bedtest.Pattern(1, 1000))
		b.ended(c)
		if err := b.ended(s); err == nil {
			t.Error("connection to the dead stack ended in order")
		}
		b.finish(c2, s2)
	})
}

// TestClientLostGroup removes the link group of the client only. The server tests the link
// before it names it in ACCEPT, since it has shown no sign of the client for some time, and
// declines. The next connection makes a new group at once, and the old one ends when nobody has
// answered.
func TestClientLostGroup(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.finish(b.connect())
		b.w.SetLAN("lan", false)
		g := inspect(b.client).Groups()[0]
		g.PeerLost(firstQPN(g), errors.New("test")) // the client tests its link, and nobody answers
		time.Sleep(detection)
		if c, s := len(inspect(b.client).Groups()), len(inspect(b.server).Groups()); c != 0 || s != 1 {
			t.Fatalf("%d and %d link groups, want 0 and 1", c, s)
		}
		old := inspect(b.server).Groups()[0]
		b.w.SetLAN("lan", true)
		ct, st := b.tcp()
		_, _, cerr, serr := b.rendezvous(ct, st)
		var d *userstack.DeclineError
		if !errors.As(cerr, &d) || !errors.As(serr, &d) {
			t.Fatalf("client %v, server %v, want declined", cerr, serr)
		}
		b.stillTCP(ct, st)
		c2, s2 := b.connect()
		if inspect(b.server).GroupOf(s2) == old {
			t.Error("the connection is in the link group that the client has lost")
		}
		b.exchange(c2, s2, bedtest.Pattern(1, 1000))
		time.Sleep(detection)
		if slices.Contains(inspect(b.server).Groups(), old) {
			t.Error("the server keeps the link group that the client has lost")
		}
		b.finish(c2, s2)
	})
}

// TestClientLostLink: the link in the ACCEPT of the server fails before the client reads
// the ACCEPT. Then "out of sync" does not mean that the link group has ended: its other
// link still works.
func TestClientLostLink(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		c, s := b.connect()
		time.Sleep(time.Second)
		if n := b.links(b.server); n != 2 {
			t.Fatalf("%d links, want 2", n)
		}
		g := inspect(b.server).GroupOf(s)
		qpn := firstQPN(g)
		b.ch.SetPort("eth0", false)
		time.Sleep(time.Second)
		g.PeerLost(qpn, errors.New("declined: out of sync"))
		b.exchange(c, s, bedtest.Pattern(1, 1000))
		b.ch.SetPort("eth0", true)
		b.finish(c, s)
	})
}

// TestFailover makes one of two links fail under load, in each way and on each side. No
// data may be lost, and new connections must work.
func TestFailover(t *testing.T) {
	tests := []struct {
		name string
		do   func(b *bed, dev string)
	}{
		{"ClientDeviceGone", func(b *bed, dev string) { b.ch.Remove(dev) }},
		{"ServerDeviceGone", func(b *bed, dev string) { b.sh.Remove(dev) }},
		{"ClientPortDown", func(b *bed, dev string) { b.ch.SetPort(dev, false) }},
		{"ServerPortDown", func(b *bed, dev string) { b.sh.SetPort(dev, false) }},
	}
	for _, tt := range tests {
		for _, dev := range []string{"eth0", "eth1"} {
			t.Run(tt.name+dev, func(t *testing.T) {
				for seed := range uint64(2) {
					bedtest.Bubble(t, func(t *testing.T) {
						b := newBed(t, bedConfig{devices: 2, fabric: simfabric.Config{
							Seed: seed, Delay: 10 * time.Microsecond, Jitter: 100 * time.Microsecond,
						}})
						var load []*traffic
						for i := range uint64(6) {
							c, s := b.connect()
							load = append(load, startTraffic(t, c, s, seed*100+i))
						}
						time.Sleep(time.Duration(30+7*seed) * time.Millisecond)
						tt.do(b, dev)
						time.Sleep(1500 * time.Millisecond)
						if c, s := b.links(b.client), b.links(b.server); c != 1 || s != 1 {
							t.Errorf("%d and %d links", c, s)
						}
						for i, x := range load {
							if err := x.end(); err != nil {
								t.Errorf("connection %d: %v", i, err)
							}
							if x.n[0] == 0 || x.n[1] == 0 {
								t.Errorf("connection %d carried %v bytes", i, x.n)
							}
							b.finish(x.c, x.s)
						}
					})
				}
			})
		}
	}
}

// TestLinkComesBack checks that a device that works again gets a link again.
func TestLinkComesBack(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bedtest.Bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2})
				c, s := b.connect()
				h, _ := b.side(who)
				x := startTraffic(t, c, s, 3)
				for range 3 {
					h.SetPort("eth1", false)
					time.Sleep(3 * time.Second)
					if n := b.links(b.server); n != 1 {
						t.Errorf("%d links with a port down", n)
					}
					h.SetPort("eth1", true)
					time.Sleep(10 * time.Second)
					if n := b.links(b.server); n != 2 {
						t.Errorf("%d links after the port came back", n)
					}
				}
				if err := x.end(); err != nil {
					t.Error(err)
				}
				b.finish(c, s)
			})
		})
	}
}

// TestLateGID: the port of a device becomes active before the device has a GID.
func TestLateGID(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bedtest.Bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2})
				c, s := b.connect()
				h, _ := b.side(who)
				h.SetPort("eth1", false)
				h.SetGIDs("eth1", false)
				time.Sleep(time.Second)
				h.SetPort("eth1", true)
				time.Sleep(time.Second)
				if n := b.links(b.server); n != 1 {
					t.Errorf("%d links without a GID", n)
				}
				h.SetGIDs("eth1", true)
				time.Sleep(10 * time.Second)
				// There must not be an asymmetric link on the other device.
				if g := bedtest.One(t, b.server.Control().LinkGroups); g.Type != smc.GroupSymmetric {
					t.Errorf("type %v with the GID, want %v", g.Type, smc.GroupSymmetric)
				}
				b.exchange(c, s, bedtest.Pattern(1, 1000))
				b.finish(c, s)
			})
		})
	}
}

// TestDeviceReplaced removes a netdev and restores it: the stack opens the device again
// for the next first contact.
func TestDeviceReplaced(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.sh.Remove("eth0")
		b.ended(s)
		b.sh.Restore("eth0")
		b.ended(c)
		c, s = b.connect()
		b.exchange(c, s, bedtest.Pattern(1, 1000))
		b.finish(c, s)
		if g := bedtest.One(t, b.server.Control().LinkGroups); g.Type != smc.GroupSingle {
			t.Errorf("link group %+v", g)
		}
	})
}

// TestUnreachablePeerAtClose closes a connection whose peer does not answer any more:
// Close does not wait, and the connection ends after a limited time.
func TestUnreachablePeerAtClose(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.sh.SetVanished(true)
		start := time.Now()
		c.Close()
		if d := time.Since(start); d > 0 {
			t.Errorf("Close took %v", d)
		}
		if err := b.ended(c); err == nil {
			t.Error("connection ended in order")
		}
		if d := time.Since(start); d > time.Minute {
			t.Errorf("ended after %v", d)
		}
		b.ended(s)
	})
}

// TestPeerNeverCloses: one side calls Close and the other side does not. The connection
// is reset after the time CloseWait.
func TestPeerNeverCloses(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		start := time.Now()
		c.Close()
		if err := readByte(s); err != io.EOF {
			t.Errorf("read: %v", err)
		}
		b.ended(c)
		if d, want := time.Since(start), linkgroup.DefaultTimers(smc.Client).CloseWait; d < want || d > want+15*time.Second {
			t.Errorf("ended after %v, want about %v", d, want)
		}
		s.Close()
		b.ended(s)
	})
}
