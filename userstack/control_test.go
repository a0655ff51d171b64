// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/userstack/internal/inside"
)

// served returns a Client of a Server of ctl, over a real socket.
func served(t *testing.T, ctl nl.Control) nl.Control {
	t.Helper()
	address := fmt.Sprintf("@smcr-userstack-test-%d/%s", os.Getpid(), t.Name())
	l, err := nl.ListenUnix(address)
	if err != nil {
		t.Fatal(err)
	}
	srv := nl.NewServer(ctl, nl.ServerConfig{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	c, err := nl.DialUnix(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestControlSuite runs the suite of package nl on a stack with connections, directly and
// through client and server.
func TestControlSuite(t *testing.T) {
	testkind.System(t)
	for name, wrap := range map[string]func(*testing.T, nl.Control) nl.Control{
		"Direct": func(_ *testing.T, c nl.Control) nl.Control { return c },
		"Served": served,
	} {
		t.Run(name, func(t *testing.T) {
			nltest.RunControlSuite(t, func(t *testing.T) nl.Control {
				b := newBed(t, bedConfig{devices: 2})
				b.connect()
				b.connect()
				return wrap(t, b.server.Control())
			}, nltest.Options{NetDev: "eth0"})
		})
	}
}

// onBothEnds calls f for both ends of each pair.
func onBothEnds(t *testing.T, pairs [][2]*Conn, f func(*Conn) error) {
	t.Helper()
	for _, p := range pairs {
		if err := errors.Join(f(p[0]), f(p[1])); err != nil {
			t.Fatal(err)
		}
	}
}

// TestControlListsWhatIsThere compares the listings of both stacks with each other and
// with the actions of the test.
func TestControlListsWhatIsThere(t *testing.T) {
	testkind.System(t)
	b := newBed(t, bedConfig{devices: 2, client: func(c *Config) { c.RecvBuf = 128 << 10 }})
	ctx := inside.WithOwner(t.Context(), inside.Owner{UID: 1000, PID: 77, Command: "curl"})
	var pairs [][2]*Conn
	for range 3 {
		ct, st := b.tcp()
		done := make(chan *Conn, 1)
		go func() {
			s, err := b.server.Server(t.Context(), st)
			if err != nil {
				t.Error(err)
			}
			done <- s
		}()
		c, err := b.client.Client(ctx, ct)
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, [2]*Conn{c, <-done})
	}
	for i, p := range pairs {
		b.exchange(p[0], p[1], pattern(uint64(i), 1000))
		b.exchange(p[1], p[0], pattern(uint64(i), 2000))
	}
	testkind.Eventually(t, "the stacks are busy", func() (any, bool) {
		for _, s := range []*Stack{b.client, b.server} {
			for _, c := range list(t, s.Control().Connections) {
				if i := c.Info; i.TXFin != i.TXProd || i.TXFin != i.TXPrep {
					return *i, false
				}
			}
			links := list(t, s.Control().Links)
			if len(links) != 2 || slices.ContainsFunc(links, func(l nl.Link) bool { return l.State != smc.LinkActive }) {
				return links, false
			}
		}
		return nil, true
	})
	onBothEnds(t, pairs, func(c *Conn) error { _, _, err := c.Reserve(1); return err }) // each has a chunk

	// Nothing changes any more, so the server's answers equal those of the stack.
	for name, s := range map[string]*Stack{"client": b.client, "server": b.server} {
		t.Run(name, func(t *testing.T) {
			direct, remote := s.Control(), served(t, s.Control())
			same(t, "LinkGroups", direct.LinkGroups, remote.LinkGroups)
			same(t, "Links", direct.Links, remote.Links)
			same(t, "Devices", direct.Devices, remote.Devices)
			same(t, "Connections", direct.Connections, remote.Connections)
			same(t, "Stats", direct.Stats, remote.Stats)
			same(t, "SysInfo", direct.SysInfo, remote.SysInfo)
			same(t, "Fallbacks", direct.Fallbacks, remote.Fallbacks)
		})
	}

	cg, sg := one(t, b.client.Control().LinkGroups), one(t, b.server.Control().LinkGroups)
	if cg.Role != smc.Client || sg.Role != smc.Server || cg.Type != smc.GroupSymmetric || sg.Type != smc.GroupSymmetric {
		t.Errorf("roles %v and %v, types %v and %v", cg.Role, sg.Role, cg.Type, sg.Type)
	}
	if cg.Conns != 3 || sg.Conns != 3 || cg.Links != 2 || sg.Links != 2 {
		t.Errorf("link groups: %+v, %+v", cg, sg)
	}
	if cg.PeerID != b.server.reg.peerID || sg.PeerID != b.client.reg.peerID || cg.Peer != "10.0.0.2" || sg.Peer != "10.0.0.1" {
		t.Errorf("peers %x %s and %x %s", cg.PeerID, cg.Peer, sg.PeerID, sg.Peer)
	}
	if cg.RMB < 3*128<<10 || sg.RMB < 3*64<<10 || cg.Sndbuf != 3*64<<10 {
		t.Errorf("memory: %d and %d of RMBs, %d of send buffers", cg.RMB, sg.RMB, cg.Sndbuf)
	}
	onBothEnds(t, pairs, func(c *Conn) error { return c.Commit(0) })

	cl, sl := list(t, b.client.Control().Links), list(t, b.server.Control().Links)
	if len(cl) != 2 || len(sl) != 2 {
		t.Fatalf("%d and %d links", len(cl), len(sl))
	}
	conns := uint32(0)
	for i := range cl {
		c, s := cl[i], sl[i]
		if c.GID != s.PeerGID || s.GID != c.PeerGID || c.QPN != s.PeerQPN || s.QPN != c.PeerQPN || c.ID != s.ID ||
			c.UID != s.PeerUID || s.UID != c.PeerUID || c.State != smc.LinkActive || s.State != smc.LinkActive || c.MTU != 1024 {
			t.Errorf("ends of link %d do not match:\n%+v\n%+v", i, c, s)
		}
		if want := fmt.Sprintf("sim-eth%d", c.NetDev-2); c.IBDev != want {
			t.Errorf("link on %s, netdev %d", c.IBDev, c.NetDev)
		}
		conns += c.Conns
	}
	if conns != 3 {
		t.Errorf("%d connections on the links", conns)
	}

	cc, sc := list(t, b.client.Control().Connections), list(t, b.server.Control().Connections)
	if len(cc) != 3 || len(sc) != 3 {
		t.Fatalf("%d and %d connections", len(cc), len(sc))
	}
	for i := range cc {
		c, s := cc[i], sc[i]
		if c.Local != s.Remote || s.Local != c.Remote || c.State != smc.StateActive || c.Mode != nl.ModeSMCR {
			t.Errorf("ends of connection %d do not match:\n%+v\n%+v", i, c, s)
		}
		if c.UID != 1000 || c.PID != 77 || c.Command != "curl" || s.PID != uint32(os.Getpid()) {
			t.Errorf("owners: %d %d %q and %d", c.UID, c.PID, c.Command, s.PID)
		}
		if c.TXBytes != 1000 || c.RXBytes != 2000 || s.TXBytes != 2000 || s.RXBytes != 1000 {
			t.Errorf("bytes: %d %d and %d %d", c.TXBytes, c.RXBytes, s.TXBytes, s.RXBytes)
		}
		if c.Info.RMBE != 128<<10 || c.Info.PeerRMBE != 64<<10 || s.Info.PeerRMBE != 128<<10 || c.Info.TXProd.Count != 1000 {
			t.Errorf("info: %+v and %+v", c.Info, s.Info)
		}
	}

	st, err := b.client.Control().Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.SMCR.ClientV1 != 3 || st.SMCR.TXBytes != 3000 || st.SMCR.RXBytes != 6000 {
		t.Errorf("statistics: %+v", st.SMCR)
	}
	for _, p := range pairs {
		b.finish(p[0], p[1])
	}
	if cg = one(t, b.client.Control().LinkGroups); cg.Conns != 0 {
		t.Errorf("%d connections after the end", cg.Conns)
	}
	if cc = list(t, b.client.Control().Connections); len(cc) != 0 {
		t.Errorf("connections after the end: %+v", cc)
	}
}

// TestPNETPicksDevices sets pnetids that exclude a device.
func TestPNETPicksDevices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		ctl := b.server.Control()
		for _, p := range []nl.PNET{{ID: "NET1", NetDev: "eth0"}, {ID: "NET1", IBDev: "sim-eth1", IBPort: 1}} {
			if err := ctl.AddPNET(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []nl.PNET{{ID: "NET2", NetDev: "eth7"}, {ID: "NET2", IBDev: "mlx5_0", IBPort: 1}} {
			if err := ctl.AddPNET(t.Context(), p); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("AddPNET %+v: %v", p, err)
			}
		}
		c, s := b.connect()
		for _, l := range list(t, ctl.Links) {
			if l.IBDev != "sim-eth1" {
				t.Errorf("link on %s, which has no pnetid", l.IBDev)
			}
		}
		if g := one(t, ctl.LinkGroups); g.PNETID != "NET1" {
			t.Errorf("link group's pnetid %q", g.PNETID)
		}
		b.finish(c, s)

		// A software port without a pnetid has the pnetid of its netdev.
		if err := ctl.FlushPNET(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := ctl.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "eth0"}); err != nil {
			t.Fatal(err)
		}
		for _, d := range list(t, ctl.Devices) {
			if id := d.Ports[0].PNETID; (id == "NET1") != (d.Name == "sim-eth0") {
				t.Errorf("%s has pnetid %q", d.Name, id)
			}
		}
		c, s = b.connect()
		time.Sleep(2 * time.Second) // the server waits behind the exchange before
		if !slices.ContainsFunc(list(t, ctl.Links), func(l nl.Link) bool { return l.IBDev == "sim-eth0" }) {
			t.Error("no link on sim-eth0")
		}
		b.finish(c, s)

		// With a pnetid that no device has, the connection is TCP.
		if err := ctl.AddPNET(t.Context(), nl.PNET{ID: "NET2", IBDev: "sim-eth0"}); err != nil {
			t.Fatal(err)
		}
		ct, st := b.tcp()
		_, _, cerr, serr := b.rendezvous(ct, st)
		wantDecline(t, "client", cerr, smc.DiagNoSMCRDev, true)
		wantDecline(t, "server", serr, smc.DiagNoSMCRDev, false)
		b.stillTCP(ct, st)
	})
}

// TestWithoutDecided: a connection that was undecided when TCP sockets were listed, and that the stack carries now, is listed once.
func TestWithoutDecided(t *testing.T) {
	conn := func(s smc.ConnState, m nl.Mode, cookie uint64) nl.Connection {
		return nl.Connection{State: s, Mode: m, Cookie: cookie}
	}
	carried := []nl.Connection{conn(smc.StateActive, nl.ModeSMCR, 0), conn(smc.StateActive, nl.ModeSMCR, 1), conn(smc.StateInit, nl.ModeSMCR, 2)}
	undecided, plain, inTCP := conn(smc.StateInit, nl.ModeSMCR, 3), conn(smc.StateActive, nl.ModeTCP, 4), conn(smc.StateInit, nl.ModeTCP, 5)
	listens := conn(smc.StateListen, nl.ModeSMCR, 6)
	for _, test := range []struct{ others, want []nl.Connection }{
		{nil, nil},
		{[]nl.Connection{plain, inTCP, listens}, []nl.Connection{plain, inTCP, listens}},
		{[]nl.Connection{conn(smc.StateInit, nl.ModeSMCR, 1), plain, undecided, conn(smc.StateInit, nl.ModeSMCR, 2)}, []nl.Connection{plain, undecided}},
	} {
		if got := withoutDecided(test.others, carried); !slices.Equal(got, test.want) {
			t.Errorf("%+v, want %+v", got, test.want)
		}
	}
}
