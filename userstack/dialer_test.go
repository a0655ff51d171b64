// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/simfabric"
)

// loopNetwork is a network in which the loopback device of this machine leads to the
// neighbours, over the netdev of a simulated host: TCP is real, RDMA is simulated.
type loopNetwork struct{ simNetwork }

func (n loopNetwork) Route(_, remote netip.Addr) (network.Route, error) {
	if !remote.Unmap().IsLoopback() {
		return network.Route{}, fmt.Errorf("%w: %s", ErrNotOnLink, remote)
	}
	d := n.Host.NetDevs()[0]
	return network.Route{NetDev: d.Name, IfIndex: d.Index, Local: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}, nil
}

// fakeOption returns the TCP option of every peer as the test sets it.
type fakeOption struct {
	smc    atomic.Bool
	marked atomic.Int32
	fails  error // the error of MarkConnect
}

func (o *fakeOption) MarkConnect(int) error     { o.marked.Add(1); return o.fails }
func (o *fakeOption) MarkListen(int) error      { return nil }
func (o *fakeOption) Close() error              { return nil }
func (o *fakeOption) PeerSMC(int) (bool, error) { return o.smc.Load(), nil }

// loopStacks makes the stacks of a client and a server that reach each other over
// loopback. Their peers announce SMC.
func loopStacks(t *testing.T, tune func(*Config)) (client, server *Stack, opt *fakeOption) {
	t.Helper()
	w := simfabric.New(simfabric.Config{})
	t.Cleanup(w.Close)
	opt = &fakeOption{}
	opt.smc.Store(true)
	var out [2]*Stack
	for i := range out {
		h := w.Host(fmt.Sprint("host", i), netdevs(i+1, 1)...)
		conf := Config{Providers: []rdmaverbs.Provider{h.Provider()}, network: loopNetwork{simNetwork{Host: h}}, option: opt, Hostname: h.Name()}
		if tune != nil {
			tune(&conf)
		}
		s, err := New(conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil && !errors.Is(err, ErrStackClosed) {
				t.Error(err)
			}
		})
		out[i] = s
	}
	return out[0], out[1], opt
}

// declined collects the arguments of a Declined function.
type declined struct {
	mu   sync.Mutex
	why  []*DeclineError
	from []net.Addr
}

func (d *declined) declined(remote net.Addr, why *DeclineError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why, d.from = append(d.why, why), append(d.from, remote)
}

func (d *declined) codes() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.why {
		out = append(out, w.Code.String())
	}
	return out
}

// plainServer is a TCP server without SMC. gone receives how its first connection ended.
func plainServer(t *testing.T) (address string, gone <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ch := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, err = c.Read(make([]byte, 1))
		}
		ch <- err
	}()
	return l.Addr().String(), ch
}

// TestDialerRequireSMC: for a peer without SMC there is a TCP connection, or with
// RequireSMC a reset. The caller gets the reason.
func TestDialerRequireSMC(t *testing.T) {
	testkind.System(t)
	for _, require := range []bool{false, true} {
		t.Run(fmt.Sprint(require), func(t *testing.T) {
			s, _, opt := loopStacks(t, nil)
			opt.smc.Store(false)
			address, gone := plainServer(t)
			var d declined
			c, err := (&Dialer{Stack: s, RequireSMC: require, Declined: d.declined}).Dial("tcp", address)
			if got, want := d.codes(), []string{ReasonPeerNoSMC.String()}; !slices.Equal(got, want) {
				t.Errorf("declined %q, want %q", got, want)
			}
			if fb := list(t, s.Control().Fallbacks); fb.ClientTotal != 1 || fb.ServerTotal != 0 || fb.Reasons[0].Reason != uint32(ReasonPeerNoSMC) {
				t.Errorf("fallbacks counted: %+v", fb)
			}
			if !require {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, ok := c.(*net.TCPConn); !ok || IsSMC(c) {
					t.Errorf("%T, SMC %v", c, IsSMC(c))
				}
				return
			}
			var op *net.OpError
			var why *DeclineError
			if c != nil || !errors.As(err, &op) || op.Op != "dial" || !errors.As(err, &why) || why.Code != ReasonPeerNoSMC || why.Remote {
				t.Fatalf("%v, %v", c, err)
			}
			if err := <-gone; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server's end: %v, want a reset", err)
			}
		})
	}
}

// TestDialerAsksFirst: if SMC-R cannot reach the peer, no TCP connection is made.
func TestDialerAsksFirst(t *testing.T) {
	testkind.System(t)
	unmarkable := errors.New("no room for the program")
	for _, tt := range []struct {
		name, address string
		tune          func(*Config)
		want          error
		code          fmt.Stringer
	}{
		{"no route", "198.51.100.1:80", nil, ErrNotOnLink, ReasonNoRoute},
		{"no option", "", func(c *Config) { c.option, c.NoOption = nil, true }, ErrNoOption, smc.DiagConfig},
		{"no device", "", func(c *Config) { c.NetDevs = []string{"eth9"} }, ErrNoDevice, ReasonNoDevice},
		{"not to be marked", "", func(c *Config) { c.option = &fakeOption{fails: unmarkable} }, unmarkable, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, _ := loopStacks(t, tt.tune)
			address, gone := plainServer(t)
			if tt.address != "" {
				address = tt.address
			}
			var d declined
			c, err := (&Dialer{Stack: s, RequireSMC: true, Declined: d.declined}).Dial("tcp", address)
			var why *DeclineError
			if c != nil || !errors.As(err, &why) || !errors.Is(err, tt.want) || tt.code != nil && tt.code != why.Code {
				t.Fatalf("%v, %v", c, err)
			}
			if len(d.why) != 1 || d.why[0] != why || d.from[0].String() != address {
				t.Errorf("declined %v by %v", d.why, d.from)
			}
			select {
			case err := <-gone:
				t.Errorf("the server was asked: %v", err)
			default:
			}
		})
	}
}

// TestDialerUnmarked: a socket that cannot be marked is a plain TCP connection if that is
// allowed, and the reason does not blame the peer.
func TestDialerUnmarked(t *testing.T) {
	testkind.System(t)
	unmarkable := errors.New("no room for the program")
	opt := &fakeOption{fails: unmarkable}
	s, _, _ := loopStacks(t, func(c *Config) { c.option = opt })
	address, _ := plainServer(t)
	var d declined
	c, err := (&Dialer{Stack: s, Declined: d.declined}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(d.why) != 1 || !errors.Is(d.why[0], unmarkable) || IsSMC(c) {
		t.Errorf("declined %v", d.why)
	}
}

// TestNetDialer: the net.Dialer and net.ListenConfig of the program are used.
func TestNetDialer(t *testing.T) {
	testkind.System(t)
	client, server, _ := loopStacks(t, nil)
	var controls, listens atomic.Int32
	l, err := (&ListenConfig{Stack: server, NetListenConfig: &net.ListenConfig{
		Control: func(string, string, syscall.RawConn) error { listens.Add(1); return nil },
	}}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := Dialer{Stack: client, RequireSMC: true, NetDialer: &net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)},
		Control:   func(string, string, syscall.RawConn) error { controls.Add(1); return nil },
	}}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if host, _, _ := net.SplitHostPort(c.LocalAddr().String()); host != "127.0.0.9" {
		t.Errorf("connected from %s", host)
	}
	if controls.Load() != 1 || listens.Load() != 1 {
		t.Errorf("called %d and %d times", controls.Load(), listens.Load())
	}
	refuse := errors.New("not this address")
	d.NetDialer = &net.Dialer{ControlContext: func(context.Context, string, string, syscall.RawConn) error { return refuse }}
	if _, err := d.Dial("tcp", l.Addr().String()); !errors.Is(err, refuse) {
		t.Errorf("control refuses: %v", err)
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	d.NetDialer = &net.Dialer{Timeout: 50 * time.Millisecond}
	if _, err := d.Dial("tcp", mute.Addr().String()); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		t.Errorf("the timeout does not bound the rendezvous: %v", err)
	}
	if _, err := d.Dial("udp", l.Addr().String()); err == nil {
		t.Error("udp is dialled")
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Dial("tcp", l.Addr().String()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial of a closed stack: %v", err)
	}
}

// TestListenRequireSMC: a listener that requires SMC-R resets other connections and
// continues.
func TestListenRequireSMC(t *testing.T) {
	testkind.System(t)
	client, server, opt := loopStacks(t, nil)
	var d declined
	l, err := (&ListenConfig{Stack: server, RequireSMC: true, Declined: d.declined}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opt.smc.Store(false)
	plain, err := net.Dial("tcp", l.Addr().String())
	if err == nil { // otherwise the reset arrived before Dial returned
		defer plain.Close()
		_, err = plain.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection without SMC: %v, want a reset", err)
	}
	if got, want := d.codes(), []string{ReasonPeerNoSMC.String()}; !slices.Equal(got, want) {
		t.Errorf("declined %q, want %q", got, want)
	}
	if fb := list(t, server.Control().Fallbacks); fb.ServerTotal != 1 || fb.ClientTotal != 0 || fb.Reasons[0].Reason != uint32(ReasonPeerNoSMC) {
		t.Errorf("fallbacks counted: %+v", fb)
	}
	opt.smc.Store(true)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if !IsSMC(c) {
			t.Errorf("%T accepted", c)
		}
		_, _ = io.Copy(c, c)
	}()
	c, err := (&Dialer{Stack: client, RequireSMC: true}).Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 5)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q, %v", buf, err)
	}
}

// selfWrapped is a connection that wraps itself.
type selfWrapped struct{ net.Conn }

func (c selfWrapped) NetConn() net.Conn { return c }

func TestAsConn(t *testing.T) {
	smc := &Conn{}
	for _, tt := range []struct {
		c    net.Conn
		want *Conn
	}{
		{nil, nil},
		{smc, smc},
		{tls.Client(smc, &tls.Config{}), smc},
		{tls.Server(tls.Client(smc, &tls.Config{}), &tls.Config{}), smc},
		{&net.TCPConn{}, nil},
		{tls.Client(&net.TCPConn{}, &tls.Config{}), nil},
		{selfWrapped{}, nil},
	} {
		if got, ok := AsConn(tt.c); got != tt.want || ok != (tt.want != nil) || IsSMC(tt.c) != ok {
			t.Errorf("%T: %v, %v", tt.c, got, ok)
		}
	}
}

// TestConnLinkGroup: LinkGroup of a connection returns the same as the listings, also
// after a link has failed.
func TestConnLinkGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		c, s := b.connect()
		time.Sleep(time.Second)
		for who, conn := range map[string]*Conn{"client": c, "server": s} {
			_, stack := b.side(who)
			row := one(t, stack.Control().LinkGroups)
			links := list(t, stack.Control().Links)
			lg := conn.LinkGroup()
			if lg.ID != row.ID || lg.Role != row.Role || lg.Version != 1 || lg.PeerID != row.PeerID || lg.Peer.String() != row.Peer || lg.Conns != 1 {
				t.Errorf("%s: %+v, listed %+v", who, lg, row)
			}
			if len(lg.Links) != 2 || !slices.Equal(lg.Links, links) {
				t.Errorf("%s: links %+v, listed %+v", who, lg.Links, links)
			}
			if !slices.ContainsFunc(links, func(l nl.Link) bool { return l.ID == lg.Link }) {
				t.Errorf("%s: on link %d", who, lg.Link)
			}
		}
		on := func() string {
			lg := c.LinkGroup()
			return lg.Links[slices.IndexFunc(lg.Links, func(l nl.Link) bool { return l.ID == lg.Link })].IBDev
		}
		before := on()
		b.ch.SetPort(before[len("sim-"):], false)
		time.Sleep(time.Second)
		if after := on(); after == before {
			t.Errorf("still on %s, which is down", after)
		}
		b.finish(c, s)
		id := c.LinkGroup().ID
		b.closeStack(b.client)
		if lg := c.LinkGroup(); lg.ID != id || lg.Conns != 0 || len(lg.Links) != 0 || lg.Link != 0 {
			t.Errorf("of a group that has ended: %+v", lg)
		}
	})
}
