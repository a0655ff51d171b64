// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/simfabric"
)

// simNetwork makes a simulated host a Network.
type simNetwork struct{ h *simfabric.Host }

func (n simNetwork) Route(local, remote netip.Addr) (network.Route, error) {
	rt, err := n.h.Route(local, remote)
	if err != nil {
		return network.Route{}, fmt.Errorf("%w: %w", network.ErrNotOnLink, err)
	}
	return network.Route(rt), nil
}

func (simNetwork) Secured(_, _ netip.AddrPort) (bool, error) { return false, nil }

func (n simNetwork) NetDevs() ([]network.NetDev, error) {
	var out []network.NetDev
	for _, d := range n.h.NetDevs() {
		out = append(out, network.NetDev(d))
	}
	return out, nil
}

// bed is two stacks on two hosts of one world.
type bed struct {
	t              testing.TB
	w              *simfabric.World
	ch, sh         *simfabric.Host // of the client and the server
	client, server *userstack.Stack
}

// bedConfig says how a bed differs from the simplest one.
type bedConfig struct {
	fabric         simfabric.Config
	devices        int // netdevs of each host: eth0, eth1; 0 means 1
	serverDevices  int // of the server, if it has another number
	client, server func(*userstack.Config)
}

func addr(host, dev int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(dev), byte(host)}) }

// prefix is an address of a netdev: all netdevs share one subnet, as the
// netdevs of RoCE devices of one LAN do.
func prefix(host, dev int) netip.Prefix { return netip.PrefixFrom(addr(host, dev), 16) }

func netdevs(host, n int) (out []simfabric.NetDev) {
	for i := range n {
		out = append(out, simfabric.NetDev{Name: fmt.Sprintf("eth%d", i), Addrs: []netip.Prefix{prefix(host, i)}})
	}
	return out
}

// newBed makes the hosts and stacks. When the test ends it closes the stacks
// and checks that nothing is left of them.
func newBed(t testing.TB, c bedConfig) *bed {
	t.Helper()
	c.devices = max(c.devices, 1)
	if c.serverDevices == 0 {
		c.serverDevices = c.devices
	}
	if c.fabric.Delay == 0 {
		c.fabric.Delay, c.fabric.Jitter = 10*time.Microsecond, 10*time.Microsecond
	}
	b := &bed{t: t, w: simfabric.New(c.fabric)}
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects) // after the stacks are closed
	b.ch = b.w.Host("client", netdevs(1, c.devices)...)
	b.sh = b.w.Host("server", netdevs(2, c.serverDevices)...)
	b.client = b.stack(b.ch, c.client)
	b.server = b.stack(b.sh, c.server)
	return b
}

// side returns the host and the stack of "client" or "server".
func (b *bed) side(who string) (*simfabric.Host, *userstack.Stack) {
	if who == "server" {
		return b.sh, b.server
	}
	return b.ch, b.client
}

// stack starts a stack on h.
func (b *bed) stack(h *simfabric.Host, tune func(*userstack.Config)) *userstack.Stack {
	b.t.Helper()
	conf := userstack.Config{
		Providers: []rdmaverbs.Provider{h.Provider()}, NoOption: true, Hostname: h.Name(),
		RecvBuf: 64 << 10, SendBuf: 64 << 10,
	}
	inside.SetHost(&conf, inside.Host{Network: simNetwork{h}})
	if os.Getenv("SMCR_TEST_LOG") != "" {
		conf.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("host", h.Name())
	}
	if tune != nil {
		tune(&conf)
	}
	s, err := userstack.New(conf)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.closeStack(h, s) })
	return s
}

// closeStack closes s unless the test did, and checks what is left.
func (b *bed) closeStack(h *simfabric.Host, s *userstack.Stack) {
	b.t.Helper()
	if err := s.Close(); err != nil && !errors.Is(err, userstack.ErrStackClosed) {
		b.t.Errorf("close %s: %v", h.Name(), err)
	}
	if ending := inspect(s).Ending(); ending > 0 {
		b.t.Errorf("%s: %d link groups have not given back what they had", h.Name(), ending)
	}
	if n := inspect(s).MemoryInUse(); n != 0 {
		b.t.Errorf("%s: %d bytes of memory are still handed out", h.Name(), n)
	}
}

// noObjects checks that nothing is left on the devices.
func (b *bed) noObjects() {
	b.t.Helper()
	if got := b.w.Objects(); got != (simfabric.Objects{}) {
		b.t.Errorf("verbs objects left: %+v", got)
	}
}

// tcp makes a TCP connection from the client's first address to the server's.
func (b *bed) tcp() (c, s *simfabric.TCPConn) {
	b.t.Helper()
	c, s, err := b.w.Connect(netip.AddrPortFrom(addr(1, 0), 0), netip.AddrPortFrom(addr(2, 0), 80))
	if err != nil {
		b.t.Fatal(err)
	}
	return c, s
}

// rendezvous runs both sides of the rendezvous on a TCP connection.
func (b *bed) rendezvous(ct, st userstack.TCPConn) (c, s *userstack.Conn, cerr, serr error) {
	var wg sync.WaitGroup
	wg.Go(func() { s, serr = b.server.Server(context.Background(), st) })
	c, cerr = b.client.Client(context.Background(), ct)
	wg.Wait()
	return c, s, cerr, serr
}

// connect makes an SMC-R connection.
func (b *bed) connect() (c, s *userstack.Conn) {
	b.t.Helper()
	ct, st := b.tcp()
	c, s, cerr, serr := b.rendezvous(ct, st)
	if cerr != nil || serr != nil {
		b.t.Fatalf("rendezvous: client %v, server %v", cerr, serr)
	}
	return c, s
}

// finish closes both ends and waits until both have ended in order.
func (b *bed) finish(c, s *userstack.Conn) {
	b.t.Helper()
	c.Close()
	s.Close()
	for _, x := range []*userstack.Conn{c, s} {
		if err := b.ended(x); err != nil {
			b.t.Errorf("connection ended with %v", err)
		}
	}
}

// ended waits for the end of c and returns how it was.
func (b *bed) ended(c *userstack.Conn) error {
	b.t.Helper()
	select {
	case <-c.Done():
		return c.Err()
	case <-time.After(5 * time.Minute):
		b.t.Fatalf("connection did not end: %v", c)
		return nil
	}
}

// links returns the number of active links of the only link group.
func (b *bed) links(s *userstack.Stack) (n int) {
	b.t.Helper()
	gs := inspect(s).Groups()
	if len(gs) != 1 {
		b.t.Fatalf("%d link groups, want 1", len(gs))
	}
	gs[0].View(func(core *linkgroup.Group) {
		for _, l := range core.Links() {
			if l.State() == smc.LinkActive {
				n++
			}
		}
	})
	return n
}

// bubble runs f in a synctest bubble. Timers keep fake time going, so a test
// that waits for what never comes would not be found to be deadlocked: after
// some hours of fake time it panics, which shows who waits for what.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hangs := time.AfterFunc(6*time.Hour, func() { panic("the test hangs") })
		t.Cleanup(func() { hangs.Stop() })
		f(t)
	})
}

// pattern returns n bytes that depend on seed.
func pattern(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 99))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// exchange sends data from one end to the other and checks what comes.
func (b *bed) exchange(from io.Writer, to io.Reader, data []byte) {
	b.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		done <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(to, got); err != nil {
		b.t.Fatalf("read: %v", err)
	}
	if err := <-done; err != nil {
		b.t.Fatalf("write: %v", err)
	}
	if !bytes.Equal(got, data) {
		b.t.Fatalf("%d bytes differ", len(data))
	}
}

// list returns the answer to a question of a Control.
func list[T any](t testing.TB, ask func(context.Context) (T, error)) T {
	t.Helper()
	v, err := ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// one returns the only row of an answer.
func one[T any](t testing.TB, ask func(context.Context) ([]T, error)) (row T) {
	t.Helper()
	rows := list(t, ask)
	if len(rows) != 1 {
		t.Fatalf("%d rows, want 1: %+v", len(rows), rows)
	}
	return rows[0]
}

func netAddr(host int) netip.AddrPort { return netip.AddrPortFrom(addr(host, 0), 0) }

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// inspect returns the inspector of a stack.
func inspect(s *userstack.Stack) inside.Inspector[*userstack.Conn] {
	return inside.InspectorOf[*userstack.Conn](s)
}

// firstQPN returns the queue pair number of the first link of a link group.
func firstQPN(g inside.Group) (qpn smc.QPN) {
	g.View(func(core *linkgroup.Group) { qpn = core.Links()[0].Local().QPN })
	return qpn
}

// busy reports whether a stack has connections or handshakes.
func busy(s *userstack.Stack) bool { return inside.StackOf[*userstack.Conn](s).Busy() }

// readByte reads one byte.
func readByte(c *userstack.Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

// stillTCP checks that a TCP connection carries data after a declined handshake.
func (b *bed) stillTCP(ct, st *simfabric.TCPConn) {
	b.t.Helper()
	b.exchange(ct, st, pattern(11, 100<<10))
	b.exchange(st, ct, pattern(12, 100<<10))
	ct.Close()
	st.Close()
}
