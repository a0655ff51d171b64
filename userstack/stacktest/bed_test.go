// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

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
	b.ch = b.w.Host("client", bedtest.NetDevs(1, c.devices)...)
	b.sh = b.w.Host("server", bedtest.NetDevs(2, c.serverDevices)...)
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
	inside.SetHost(&conf, inside.Host{Network: bedtest.Network{Host: h}})
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
	bedtest.NoObjects(b.t, b.w)
}

// tcp makes a TCP connection from the client's first address to the server's.
func (b *bed) tcp() (c, s *simfabric.TCPConn) {
	b.t.Helper()
	return bedtest.Connect(b.t, b.w)
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
	bedtest.Finish(b.t, c, s)
}

// ended waits for the end of c and returns its error.
func (b *bed) ended(c *userstack.Conn) error {
	b.t.Helper()
	return bedtest.Ended(b.t, c)
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

// exchange sends data from one end to the other and checks what arrives.
func (b *bed) exchange(from io.Writer, to io.Reader, data []byte) {
	b.t.Helper()
	bedtest.Exchange(b.t, from, to, data)
}

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
	b.exchange(ct, st, bedtest.Pattern(11, 100<<10))
	b.exchange(st, ct, bedtest.Pattern(12, 100<<10))
	ct.Close()
	st.Close()
}
