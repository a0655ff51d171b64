// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"smcr/guard"
	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/devices"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/simfabric"
)

func pattern(seed uint64, n int) []byte         { return bedtest.Pattern(seed, n) }
func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); bedtest.Bubble(t, f) }

// settled is longer than a message takes.
const settled = 10 * time.Millisecond

// bed has the drivers of two hosts. The test itself is the rendezvous: it passes the
// parameters of each side to the other one.
type bed struct {
	t              testing.TB
	w              *simfabric.World
	client, server *side
	owner          inside.Owner // the owner of the client's connections
}

// side is one host.
type side struct {
	*Driver
	stats stats.Collector
	guard guard.Guard
	set   *devices.Set
	id    smc.PeerID
	num   int
	conf  Config
}

// newBed makes the hosts. tune changes the configuration of the client's driver, or is nil.
// When the test ends, the bed closes the drivers and checks that nothing is left.
func newBed(t testing.TB, tune func(*Config)) *bed {
	t.Helper()
	return newBedOn(t, simfabric.Config{}, tune)
}

// newBedOn is newBed for hosts on a fabric with that configuration, except for the delay.
func newBedOn(t testing.TB, fabric simfabric.Config, tune func(*Config)) *bed {
	t.Helper()
	fabric.Delay, fabric.Jitter = 10*time.Microsecond, 10*time.Microsecond
	b := &bed{t: t, w: simfabric.New(fabric)}
	t.Cleanup(b.w.Close)
	t.Cleanup(func() { bedtest.NoObjects(t, b.w) })
	b.client = b.side(1, "client", tune)
	b.server = b.side(2, "server", nil)
	return b
}

func (b *bed) side(num int, name string, tune func(*Config)) *side {
	b.t.Helper()
	host := b.w.Host(name, bedtest.NetDevs(num, 1)...)
	s := &side{num: num, id: smc.NewPeerID(uint16(num), smc.MAC{2, 0, 0, 0, 0, byte(num)})}
	log := slog.New(slog.DiscardHandler)
	s.guard = guard.Guard{Log: log, Count: s.stats.Panic}
	s.set = devices.New(devices.Config{
		Providers: []rdmaverbs.Provider{host.Provider()}, Network: bedtest.Network{Host: host}, PNETs: new(pnet.Table),
		Changed: func(p *devices.Port, up bool) { s.PortChanged(p, up) }, Log: log,
	})
	conf := Config{
		Network: bedtest.Network{Host: host}, Devices: s.set, Stats: &s.stats, Guard: &s.guard, Log: log,
		RecvBuf: 64 << 10, SendBuf: 64 << 10, Random: rand.Uint32,
	}
	if tune != nil {
		tune(&conf)
	}
	s.conf, s.Driver = conf, New(conf)
	b.t.Cleanup(func() { b.close(s) })
	return s
}

// close ends a driver, unless the test has done so, and checks that nothing is left.
func (b *bed) close(s *side) {
	b.t.Helper()
	s.Terminate()
	if err := s.Close(); err != nil {
		b.t.Error(err)
	}
	if err := s.set.Close(); err != nil {
		b.t.Error(err)
	}
	if n := s.Ending(); n > 0 {
		b.t.Errorf("%d link groups have not given back what they had", n)
	}
	if n := s.MemoryInUse(); n != 0 {
		b.t.Errorf("%d bytes of memory are in use", n)
	}
}

// end is one end of a connection, with calls that wait.
type end struct {
	*Conn
}

func (e *end) Read(p []byte) (int, error) {
	for {
		n, err := e.In.Read(p)
		if n > 0 || err != nil {
			return n, err
		}
		if err := e.In.Wait(); err != nil {
			return 0, err
		}
	}
}

func (e *end) Write(p []byte) (total int, err error) {
	for len(p) > 0 {
		n, err := e.Out.Write(p, false)
		if err == nil && n == 0 {
			err = e.Out.Wait()
		}
		total += n
		if p = p[n:]; err != nil {
			return total, err
		}
	}
	return total, nil
}

func (e *end) Close() error          { e.End.Close(); return nil }
func (e *end) Done() <-chan struct{} { return e.End.Done() }
func (e *end) Err() error            { return e.End.Err() }

// lan returns the network of a side, and its ports.
func (b *bed) lan(at, to *side) (LAN, []*devices.Port) {
	b.t.Helper()
	lan := LAN{Local: bedtest.Addr(at.num, 0), Remote: bedtest.Addr(to.num, 0)}
	var err error
	if lan.Route, err = at.conf.Network.Route(lan.Local, lan.Remote); err != nil {
		b.t.Fatal(err)
	}
	ports, _, err := at.set.For(lan.Route)
	if err != nil {
		b.t.Fatal(err)
	}
	return lan, ports
}

// group makes a link group.
func (b *bed) group(role smc.Role, at, to *side) *Group {
	b.t.Helper()
	lan, ports := b.lan(at, to)
	g, err := at.NewGroup(GroupConfig{Role: role, PeerID: to.id, LocalPeerID: at.id, LAN: lan, Ports: ports, MaxConns: 255})
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

// tcp makes a TCP connection, with what a rendezvous knows about its ends.
func (b *bed) tcp() (client, server ConnConfig) {
	b.t.Helper()
	c, s := bedtest.Connect(b.t, b.w)
	conf := func(tcp *simfabric.TCPConn) ConnConfig {
		return ConnConfig{TCP: tcp, Local: tcp.LocalAddr().(*net.TCPAddr).AddrPort(), Remote: tcp.RemoteAddr().(*net.TCPAddr).AddrPort()}
	}
	client, server = conf(c), conf(s)
	client.Owner = b.owner
	return client, server
}

// check ends the test if there is an error.
func (b *bed) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// connect makes a connection. It makes a link group if there is none.
func (b *bed) connect() (client, server *end) {
	b.t.Helper()
	cc, sc := b.tcp()
	var c, s *Conn
	if len(b.server.Groups()) == 0 {
		c, s = b.first(cc, sc)
	} else {
		c, s = b.next(cc, sc)
	}
	c.Start()
	s.Start()
	return &end{Conn: c}, &end{Conn: s}
}

// said returns the parameters in the ACCEPT or CONFIRM of the other side.
func said(local linkgroup.ConnParams, from ConnConfig) linkgroup.ConnParams {
	local.From = from.Local.Addr()
	return local
}

// first makes a connection with its link group, like a first contact.
func (b *bed) first(cc, sc ConnConfig) (c, s *Conn) {
	b.t.Helper()
	sg := b.group(smc.Server, b.server, b.client)
	s, accept, err := sg.Begin(sc, nil)
	b.check(err)
	cg := b.group(smc.Client, b.client, b.server)
	accept = said(accept, sc)
	c, confirm, err := cg.Begin(cc, &accept)
	b.check(err)
	confirm = said(confirm, cc)
	b.check(sg.Connect(confirm, b.client.id, nil))
	b.check(<-sg.FirstContact())
	b.check(<-cg.FirstContact())
	_, err = s.Attach(confirm)
	b.check(err)
	_, err = c.Attach(accept)
	b.check(err)
	return c, s
}

// next makes a connection on the existing link group, like a subsequent contact.
func (b *bed) next(cc, sc ConnConfig) (c, s *Conn) {
	b.t.Helper()
	s = b.serve(sc)
	accept := b.local(s, sc)
	c, err := b.client.Join(b.demand(accept), cc)
	b.check(err)
	b.check(<-c.Announced())
	confirm, err := c.Attach(accept)
	b.check(err)
	_, err = s.Attach(said(confirm, cc))
	b.check(err)
	return c, s
}

// serve makes the server's end of a connection on the existing link group.
func (b *bed) serve(sc ConnConfig) *Conn {
	b.t.Helper()
	_, ports := b.lan(b.client, b.server)
	port, err := ports[0].Describe((*rendezvous.Terms)(nil).Subnet())
	b.check(err)
	s, err := b.server.Join(Demand{Role: smc.Server, PeerID: b.client.id, GID: port.GID, MAC: port.MAC, Host: sc.Remote.Addr()}, sc)
	b.check(err)
	b.check(<-s.Announced())
	return s
}

// local returns the parameters in the ACCEPT for a connection of the server.
func (b *bed) local(s *Conn, sc ConnConfig) linkgroup.ConnParams {
	b.t.Helper()
	accept, err := s.Local()
	b.check(err)
	return said(accept, sc)
}

// accept makes a connection of the server that ends with the test. It returns the
// parameters in its ACCEPT.
func (b *bed) accept() linkgroup.ConnParams {
	b.t.Helper()
	_, sc := b.tcp()
	s := b.serve(sc)
	accept := b.local(s, sc)
	s.Cancel()
	return accept
}

// demand returns what a client requires of a link group after such an ACCEPT.
func (b *bed) demand(accept linkgroup.ConnParams) Demand {
	return Demand{Role: smc.Client, PeerID: b.server.id, GID: accept.Link.GID, MAC: accept.Link.MAC, QPN: accept.Link.QPN}
}

func (b *bed) exchange(from io.Writer, to io.Reader, data []byte) {
	b.t.Helper()
	bedtest.Exchange(b.t, from, to, data)
}

func (b *bed) finish(c, s *end) {
	b.t.Helper()
	bedtest.Finish(b.t, c, s)
}

func (b *bed) ended(c *end) error {
	b.t.Helper()
	return bedtest.Ended(b.t, c)
}

// regions calls f for each region of memory of a side's link groups.
func (s *side) regions(f func(r *region)) {
	for _, g := range s.Groups() {
		g.do(func(time.Time) {
			for r := range g.mem.regions {
				f(r)
			}
		})
	}
}
