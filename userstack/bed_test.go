// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/driver"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// Short names for what many tests of this package use.
type simNetwork = bedtest.Network

func addr(host, dev int) netip.Addr             { return bedtest.Addr(host, dev) }
func prefix(host, dev int) netip.Prefix         { return bedtest.Prefix(host, dev) }
func netdevs(host, n int) []simfabric.NetDev    { return bedtest.NetDevs(host, n) }
func pattern(seed uint64, n int) []byte         { return bedtest.Pattern(seed, n) }
func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); bedtest.Bubble(t, f) }
func list[T any](t testing.TB, ask func(context.Context) (T, error)) T {
	t.Helper()
	return bedtest.List(t, ask)
}
func one[T any](t testing.TB, ask func(context.Context) ([]T, error)) T {
	t.Helper()
	return bedtest.One(t, ask)
}

// bed is two stacks on two hosts of one world.
type bed struct {
	t              testing.TB
	w              *simfabric.World
	ch, sh         *simfabric.Host // the hosts of the client and the server
	client, server *Stack
}

// bedConfig is the configuration of a bed. Its zero value is enough for most tests.
type bedConfig struct {
	fabric         simfabric.Config
	devices        int // netdevs of each host: eth0, eth1; see bedtest.Hosts
	serverDevices  int // netdevs of the server, if their number is different
	client, server func(*Config)
}

// newBed makes the hosts and stacks. When the test ends, it closes the stacks and checks
// that they have released everything.
func newBed(t testing.TB, c bedConfig) *bed {
	t.Helper()
	b := &bed{t: t}
	b.w, b.ch, b.sh = bedtest.Hosts(t, c.fabric, c.devices, c.serverDevices)
	b.client = b.stack(b.ch, c.client)
	b.server = b.stack(b.sh, c.server)
	return b
}

// side returns the host and the stack of "client" or "server".
func (b *bed) side(who string) (*simfabric.Host, *Stack) {
	if who == "server" {
		return b.sh, b.server
	}
	return b.ch, b.client
}

// stack starts a stack on h.
func (b *bed) stack(h *simfabric.Host, tune func(*Config)) *Stack {
	b.t.Helper()
	conf := Config{
		Providers: []rdmaverbs.Provider{h.Provider()}, network: bedtest.Network{Host: h}, NoOption: true, Hostname: h.Name(),
		RecvBuf: 64 << 10, SendBuf: 64 << 10, Log: bedtest.Log(h),
	}
	if tune != nil {
		tune(&conf)
	}
	s, err := New(conf)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.closeStack(s) })
	return s
}

// closeStack closes s unless the test has done so, and checks that nothing is left of it.
func (b *bed) closeStack(s *Stack) {
	b.t.Helper()
	bedtest.CloseStack[*Conn](b.t, s.cfg.Hostname, s, ErrStackClosed)
}

// noObjects checks that no verbs objects are left on the devices.
func (b *bed) noObjects() {
	b.t.Helper()
	bedtest.NoObjects(b.t, b.w)
}

// tcp makes a TCP connection from the client's first address to the server's.
func (b *bed) tcp() (c, s *simfabric.TCPConn) {
	b.t.Helper()
	return bedtest.Connect(b.t, b.w)
}

// ended runs one side of the rendezvous on a TCP connection. The channel it returns
// receives the error with which that side ends.
func ended(t *testing.T, side func(context.Context, TCPConn) (*Conn, error), tcp TCPConn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := side(t.Context(), tcp)
		done <- err
	}()
	return done
}

// rendezvous runs both sides of the rendezvous on a TCP connection.
func (b *bed) rendezvous(ct, st TCPConn) (c, s *Conn, cerr, serr error) {
	return bedtest.Rendezvous(b.client.Client, b.server.Server, ct, st)
}

// connect makes an SMC-R connection.
func (b *bed) connect() (c, s *Conn) {
	b.t.Helper()
	ct, st := b.tcp()
	c, s, cerr, serr := b.rendezvous(ct, st)
	if cerr != nil || serr != nil {
		b.t.Fatalf("rendezvous: client %v, server %v", cerr, serr)
	}
	return c, s
}

// finish closes both ends and waits until both have ended without an error.
func (b *bed) finish(c, s *Conn) {
	b.t.Helper()
	bedtest.Finish(b.t, c, s)
}

// ended waits for the end of c and returns its error.
func (b *bed) ended(c *Conn) error {
	b.t.Helper()
	return bedtest.Ended(b.t, c)
}

// groups returns the link groups of a stack.
func groups(s *Stack) []*driver.Group { return s.driver.Groups() }

// group returns the link group of a connection.
func (c *Conn) group() *driver.Group { return c.d.Group() }

// localPeerID returns the peer ID of the stack that has the connection.
func (c *Conn) localPeerID() (id smc.PeerID) {
	c.group().View(func(core *linkgroup.Group) { id = core.LocalPeerID() })
	return id
}

// links returns the number of active links of the only link group.
func (b *bed) links(s *Stack) int {
	b.t.Helper()
	return bedtest.ActiveLinks[*Conn](b.t, s)
}

// exchange sends data from one end to the other and checks what arrives.
func (b *bed) exchange(from io.Writer, to io.Reader, data []byte) {
	b.t.Helper()
	bedtest.Exchange(b.t, from, to, data)
}

// noProvider has no devices.
type noProvider struct{}

func (noProvider) Name() string { return "none" }

func (noProvider) Devices(context.Context) ([]rdmaverbs.DeviceInfo, error) { return nil, nil }

func (noProvider) Open(_ context.Context, name string) (rdmaverbs.Device, error) {
	return nil, fmt.Errorf("open %s: %w", name, rdmaverbs.ErrNoDevice)
}

// same checks that two Controls return the same answer.
func same[T any](t *testing.T, what string, a, b func(context.Context) (T, error)) {
	t.Helper()
	if diff := cmp.Diff(list(t, a), list(t, b), cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y })); diff != "" {
		t.Errorf("%s (-stack +client of its server):\n%s", what, diff)
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
