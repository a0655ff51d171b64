// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

func TestFirstContact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.exchange(c, s, pattern(1, 300<<10))
		b.exchange(s, c, pattern(2, 300<<10))
		if got, want := c.RemoteAddr().String(), s.LocalAddr().String(); got != want {
			t.Errorf("client's remote address %s, server's local address %s", got, want)
		}
		if _, ok := c.LocalAddr().(*net.TCPAddr); !ok {
			t.Errorf("local address is a %T", c.LocalAddr())
		}
		b.finish(c, s)
	})
}

func TestSubsequentContact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c1, s1 := b.connect()
		c2, s2 := b.connect()
		if c1.group() != c2.group() || s1.group() != s2.group() {
			t.Error("connections of the same peers are on two link groups")
		}
		b.exchange(c1, s1, pattern(1, 10000))
		b.exchange(c2, s2, pattern(2, 10000))
		b.finish(c1, s1)
		// The group exists for some time after its last connection.
		c3, s3 := b.connect()
		if c3.group() != c2.group() {
			t.Error("third connection is on another link group")
		}
		b.finish(c2, s2)
		b.exchange(c3, s3, pattern(3, 10000))
		b.finish(c3, s3)
	})
}

// TestManyConnections opens connections at the same time: the first of them makes the
// link group, and the others wait for it.
func TestManyConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 200
		b := newBed(t, bedConfig{})
		conns := make([][2]*Conn, n)
		var wg sync.WaitGroup
		for i := range conns {
			wg.Go(func() {
				ct, st := b.tcp()
				c, s, cerr, serr := b.rendezvous(ct, st)
				if cerr != nil || serr != nil {
					t.Errorf("connection %d: client %v, server %v", i, cerr, serr)
					return
				}
				conns[i] = [2]*Conn{c, s}
				b.exchange(c, s, pattern(uint64(i), 5000))
				b.exchange(s, c, pattern(uint64(i+n), 5000))
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		if c, s := len(groups(b.client)), len(groups(b.server)); c != 1 || s != 1 {
			t.Errorf("%d and %d link groups, want one", c, s)
		}
		if !(insideStack{b.client}).Busy() {
			t.Error("stack with connections is not busy")
		}
		for _, p := range conns {
			wg.Go(func() { b.finish(p[0], p[1]) })
		}
		wg.Wait()
		if (insideStack{b.client}).Busy() || (insideStack{b.server}).Busy() {
			t.Error("stack without connections is busy")
		}
		time.Sleep(12 * time.Minute)
		if c, s := len(groups(b.client)), len(groups(b.server)); c != 0 || s != 0 {
			t.Errorf("%d and %d link groups after an idle time", c, s)
		}
	})
}

// TestGroupOverflow makes more connections than a link group can have.
func TestGroupOverflow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		few := func(c *Config) { c.MaxConns = 3 }
		b := newBed(t, bedConfig{client: few, server: few})
		var conns [][2]*Conn
		for range 7 {
			c, s := b.connect()
			conns = append(conns, [2]*Conn{c, s})
		}
		if c, s := len(groups(b.client)), len(groups(b.server)); c != 3 || s != 3 {
			t.Errorf("%d and %d link groups, want 3", c, s)
		}
		for _, p := range conns {
			b.exchange(p[0], p[1], pattern(1, 1000))
			b.finish(p[0], p[1])
		}
	})
}

// TestRoles makes connections in both directions: the two stacks have one link group for
// each role (RFC 7609, section 2.2.1).
func TestRoles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		st, ct, err := b.w.Connect(netip.AddrPortFrom(addr(2, 0), 0), netip.AddrPortFrom(addr(1, 0), 80))
		if err != nil {
			t.Fatal(err)
		}
		var c2 *Conn
		var cerr error
		done := make(chan struct{})
		go func() {
			defer close(done)
			c2, cerr = b.client.Server(t.Context(), ct)
		}()
		s2, err := b.server.Client(t.Context(), st)
		<-done
		if err != nil || cerr != nil {
			t.Fatalf("rendezvous: %v, %v", err, cerr)
		}
		if c.group() == c2.group() || c.group().Role() == c2.group().Role() {
			t.Error("both directions share a link group")
		}
		b.exchange(c, s, pattern(1, 1000))
		b.exchange(c2, s2, pattern(2, 1000))
		b.finish(c, s)
		b.finish(s2, c2)
	})
}

func TestIdleGroupEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.finish(b.connect())
		start := time.Now()
		for len(groups(b.client)) > 0 || len(groups(b.server)) > 0 {
			time.Sleep(time.Second)
			if time.Since(start) > 15*time.Minute {
				t.Fatal("idle link groups do not end")
			}
		}
		// The server ends the group, by DELETE LINK, before the client does.
		if d := time.Since(start); d < 599*time.Second || d > 603*time.Second {
			t.Errorf("link groups ended after %v, want 600 s", d)
		}
		if n := b.client.driver.MemoryInUse() + b.server.driver.MemoryInUse(); n != 0 {
			t.Errorf("%d bytes of memory are still handed out", n)
		}
		want := simfabric.Objects{Devices: 2}
		if got := b.w.Objects(); got != want {
			t.Errorf("verbs objects %+v, want %+v", got, want)
		}
		b.finish(b.connect())
	})
}

func TestIPv6(t *testing.T) {
	tests := []struct {
		name           string
		client, server string
		many           bool          // the client's netdev has fd00:11::1/64 to fd00:20::1/64
		want           smc.Diagnosis // 0 means SMC-R
	}{
		{"SamePrefix", "fd00:1::1/64", "fd00:1::2/64", false, 0},
		{"LinkLocal", "fe80::1/64", "fe80::2/64", false, 0},
		{"OtherLength", "fd00:1::1/64", "fd00:1::2/48", false, smc.DiagPrefixMismatch},
		{"EighthPrefix", "fd00:18::1/64", "fd00:18::2/64", true, 0},
		{"NinthPrefix", "fd00:19::1/64", "fd00:19::2/64", true, smc.DiagPrefixMismatch}, // a proposal has eight
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := simfabric.New(simfabric.Config{Delay: time.Microsecond})
				t.Cleanup(w.Close)
				cp, sp := netip.MustParsePrefix(tt.client), netip.MustParsePrefix(tt.server)
				b := &bed{t: t, w: w}
				addrs := []netip.Prefix{cp}
				if tt.many {
					addrs = nil
					for i := 11; i <= 20; i++ {
						addrs = append(addrs, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::1/64", i)))
					}
				}
				b.ch = w.Host("client", simfabric.NetDev{Name: "eth0", Addrs: addrs})
				b.sh = w.Host("server", simfabric.NetDev{Name: "eth0", Addrs: []netip.Prefix{sp}})
				b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
				ct, st, err := w.Connect(netip.AddrPortFrom(cp.Addr(), 0), netip.AddrPortFrom(sp.Addr(), 80))
				if err != nil {
					t.Fatal(err)
				}
				c, s, cerr, serr := b.rendezvous(ct, st)
				if tt.want == 0 {
					if cerr != nil || serr != nil {
						t.Fatalf("client %v, server %v", cerr, serr)
					}
					b.exchange(c, s, pattern(1, 1000))
					b.finish(c, s)
					return
				}
				wantDecline(t, "client", cerr, tt.want, true)
				wantDecline(t, "server", serr, tt.want, false)
				b.stillTCP(ct, st)
			})
		})
	}
}

// TestStackClose closes a stack while many calls are in progress.
func TestStackClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		type res struct {
			who string
			err error
		}
		results := make(chan res, 100)
		var pairs [][2]*Conn
		for i := range 10 {
			c, s := b.connect()
			pairs = append(pairs, [2]*Conn{c, s})
			if i%2 == 0 {
				go func() { // waits in Write
					_, err := c.Write(make([]byte, 1<<20))
					results <- res{"writer", err}
				}()
			}
			go func() { // waits in Read
				_, err := c.Read(make([]byte, 1))
				results <- res{"reader", err}
			}()
		}
		// The peer of this rendezvous sends nothing.
		ct, _ := b.tcp()
		go func() {
			_, err := b.server.Server(context.Background(), ct)
			results <- res{"rendezvous", err}
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		start := time.Now()
		if err := b.server.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("close took %v", d)
		}
		if err := b.client.Close(); err != nil {
			t.Errorf("close the client: %v", err)
		}
		for range 16 {
			select {
			case r := <-results:
				if r.err == nil {
					t.Errorf("%s: no error", r.who)
				}
			case <-time.After(time.Minute):
				t.Fatal("a call did not return after the stack was closed")
			}
		}
		for _, p := range pairs {
			for _, x := range p {
				if err := b.ended(x); err == nil {
					t.Error("connection of a closed stack ended without error")
				}
				x.Close()
			}
		}
		if err := b.server.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
		if _, err := b.server.Dial("tcp", "10.0.0.1:80"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial on a closed stack: %v", err)
		}
		if _, err := b.server.Listen("tcp", "10.0.0.1:80"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("listen on a closed stack: %v", err)
		}
		st, _ := b.tcp()
		if _, err := b.server.Server(t.Context(), st); !errors.Is(err, net.ErrClosed) {
			t.Errorf("rendezvous on a closed stack: %v", err)
		}
	})
}

// TestCloseDuringFirstContact closes either stack at many different times during a first
// contact with two links.
func TestCloseDuringFirstContact(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		for at := time.Duration(0); at < 600*time.Microsecond; at += 13 * time.Microsecond {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: 2, fabric: simfabric.Config{Delay: 20 * time.Microsecond}})
				_, victim := b.side(who)
				ct, st := b.tcp()
				var c, s *Conn
				var cerr, serr error
				done := make(chan struct{})
				go func() {
					defer close(done)
					c, s, cerr, serr = b.rendezvous(ct, st)
				}()
				time.Sleep(at)
				if err := victim.Close(); err != nil {
					t.Errorf("%s closed at %v: %v", who, at, err)
				}
				select {
				case <-done:
				case <-time.After(time.Minute):
					t.Fatalf("%s closed at %v: rendezvous does not end", who, at)
				}
				for _, x := range []struct {
					c    *Conn
					err  error
					mine bool
				}{{c, cerr, who == "client"}, {s, serr, who == "server"}} {
					switch {
					case x.c != nil:
						b.ended(x.c)
					case x.err == nil:
						t.Error("neither a connection nor an error")
					}
				}
				ct.Close()
				st.Close()
			})
		}
	}
}

func TestConfigErrors(t *testing.T) {
	testkind.System(t)
	for name, c := range map[string]Config{
		"receive buffer": {RecvBuf: 1 << 20},
		"send buffer":    {SendBuf: 100},
		"links":          {MaxLinks: 9},
		"connections":    {MaxConns: 300},
	} {
		c.NoOption = true
		if s, err := New(c); err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAssumed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{client: func(c *Config) {
			c.AssumeSMC = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
		}})
		for a, want := range map[string]bool{"10.0.3.4": true, "::ffff:10.0.3.4": true, "10.1.0.1": false, "fe80::1%eth0": false} {
			if got := b.client.opt.assumed(netip.MustParseAddr(a)); got != want {
				t.Errorf("Assumed(%s) = %v", a, got)
			}
		}
		if err := b.client.canAnnounce(addr(1, 0), addr(2, 0)); err != nil {
			t.Errorf("Candidate: %v", err)
		}
		if err := b.client.canAnnounce(addr(1, 0), netip.MustParseAddr("192.0.2.1")); !errors.Is(err, ErrNotOnLink) {
			t.Errorf("Candidate off link: %v", err)
		}
		if err := b.server.canAnnounce(addr(2, 0), addr(1, 0)); !errors.Is(err, ErrNoOption) {
			t.Errorf("Candidate without option: %v", err)
		}
	})
}

// TestSymmetricLinks checks that two devices on each side give two links, and that
// connections use both.
func TestSymmetricLinks(t *testing.T) {
	tests := []struct {
		name           string
		client, server int // devices
		links          int
		typ, peer      smc.GroupType
	}{
		{"One", 1, 1, 1, smc.GroupSingle, smc.GroupSingle},
		{"Two", 2, 2, 2, smc.GroupSymmetric, smc.GroupSymmetric},
		{"ClientTwo", 2, 1, 2, smc.GroupAsymmetricPeer, smc.GroupAsymmetricLocal},
		{"ServerTwo", 1, 2, 2, smc.GroupAsymmetricLocal, smc.GroupAsymmetricPeer},
		{"Eight", 8, 8, 8, smc.GroupSymmetric, smc.GroupSymmetric},
		{"Five", 5, 7, 5, smc.GroupSymmetric, smc.GroupSymmetric},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				eight := func(c *Config) { c.MaxLinks = 8 }
				b := newBed(t, bedConfig{devices: tt.client, serverDevices: tt.server, client: eight, server: eight})
				var pairs [][2]*Conn
				for i := range 12 {
					c, s := b.connect()
					if i == 0 {
						time.Sleep(settled) // data does not wait for the third link and later ones
					}
					b.exchange(c, s, pattern(uint64(i), 1000))
					pairs = append(pairs, [2]*Conn{c, s})
				}
				used := map[*linkgroup.Link]int{}
				var typ smc.GroupType
				groups(b.client)[0].View(func(core *linkgroup.Group) { typ = core.Type() })
				for _, p := range pairs {
					p[0].d.View(func(core *linkgroup.Conn) { used[core.Link()]++ })
				}
				if c, s := b.links(b.client), b.links(b.server); c != tt.links || s != tt.links {
					t.Errorf("%d and %d links, want %d (client's type %v)", c, s, tt.links, typ)
				}
				if len(used) != tt.links && typ == smc.GroupSymmetric {
					t.Errorf("connections are on %d links of %d", len(used), tt.links)
				}
				for _, p := range pairs {
					b.finish(p[0], p[1])
				}
			})
		})
	}
}
