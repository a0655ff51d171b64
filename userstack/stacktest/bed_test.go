// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"errors"
	"io"
	"os"
	"testing"

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

// bedConfig is the configuration of a bed. Its zero value is enough for most tests.
type bedConfig struct {
	fabric         simfabric.Config
	devices        int // netdevs of each host: eth0, eth1; see bedtest.Hosts
	serverDevices  int // netdevs of the server, if their number is different
	client, server func(*userstack.Config)
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
		RecvBuf: 64 << 10, SendBuf: 64 << 10, Log: bedtest.Log(h),
	}
	inside.SetHost(&conf, inside.Host{Network: bedtest.Network{Host: h}})
	if tune != nil {
		tune(&conf)
	}
	s, err := userstack.New(conf)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { bedtest.CloseStack[*userstack.Conn](b.t, h.Name(), s, userstack.ErrStackClosed) })
	return s
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

// rendezvous runs both sides of the rendezvous on a TCP connection.
func (b *bed) rendezvous(ct, st userstack.TCPConn) (c, s *userstack.Conn, cerr, serr error) {
	return bedtest.Rendezvous(b.client.Client, b.server.Server, ct, st)
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

// finish closes both ends and waits until both have ended without an error.
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
func (b *bed) links(s *userstack.Stack) int {
	b.t.Helper()
	return bedtest.ActiveLinks[*userstack.Conn](b.t, s)
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
