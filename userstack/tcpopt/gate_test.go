// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

const (
	foreign = "forged"
	// quiet is how long a test checks that no bytes arrive.
	quiet = 150 * time.Millisecond
)

// gated is a connection with a gate at one end.
type gated struct {
	*bed
	conn
	end, peer int // descriptors: the end with the gate, and the other end
	gate      *Gate
}

// gatedClient connects a socket with a gate to a marked listener.
func (b *bed) gatedClient(family int) *gated {
	b.Helper()
	addr, any := b.B.Addr(), "0.0.0.0"
	if family == unix.AF_INET6 {
		addr, any = b.B.Addr6(), "::"
	}
	l := b.listener(family, any, 0, true)
	fd := b.socket(b.A, family)
	b.must(b.prog.GateConnect(fd))
	c := b.connect(fd, l, family, addr)
	b.wantPeer("client", fd, PeerSMC)
	return b.gated(c, c.client, c.server)
}

// gatedServer connects a marked socket to a listener whose accepted sockets have a gate.
func (b *bed) gatedServer(family int) *gated {
	b.Helper()
	addr, any := b.B.Addr(), "0.0.0.0"
	if family == unix.AF_INET6 {
		addr, any = b.B.Addr6(), "::"
	}
	l := b.bind(b.B, family, any, 0)
	b.must(b.prog.GateListen(l, 0))
	b.must(unix.Listen(l, 8))
	fd := b.socket(b.A, family)
	b.must(b.prog.MarkConnect(fd))
	c := b.connect(fd, l, family, addr)
	b.wantPeer("server", c.server, PeerSMC)
	return b.gated(c, c.server, c.client)
}

func (b *bed) gated(c conn, end, peer int) *gated {
	b.Helper()
	g, err := b.prog.Gate(end)
	b.must(err)
	if g == nil {
		b.Fatal("the socket has no gate")
	}
	return &gated{b, c, end, peer, g}
}

// sides runs a test for each end that can have the gate, over IPv4 and IPv6. In the short form
// each end has one of both.
func sides(t *testing.T, f func(t *testing.T, g *gated)) {
	b := newBed(t)
	for name, family := range map[string]int{"IPv4": unix.AF_INET, "IPv6": unix.AF_INET6} {
		if !testing.Short() || name == "IPv4" {
			t.Run("client/"+name, func(t *testing.T) { f(t, b.withT(t).gatedClient(family)) })
		}
		if !testing.Short() || name == "IPv6" {
			t.Run("server/"+name, func(t *testing.T) { f(t, b.withT(t).gatedServer(family)) })
		}
	}
}

// withT returns the same bed for a subtest.
func (b *bed) withT(t testing.TB) *bed { return &bed{TB: t, Pair: b.Pair, prog: b.prog} }

// expectNothing fails the test if the peer receives a byte.
func (g *gated) expectNothing(what string) {
	g.Helper()
	time.Sleep(quiet)
	buf := make([]byte, 100)
	n, _, err := unix.Recvfrom(g.peer, buf, unix.MSG_DONTWAIT)
	if !errors.Is(err, unix.EAGAIN) {
		g.Errorf("%s: the peer got %q, %v", what, buf[:max(0, n)], err)
	}
}

// expect checks the next bytes that the peer receives.
func (g *gated) expect(want string) {
	g.Helper()
	if got := g.read(g.peer); got != want {
		g.Errorf("the peer got %q, want %q", got, want)
	}
}

func (g *gated) send(msg string, last bool) {
	g.Helper()
	g.must(g.gate.Send(g.end, []byte(msg), last))
}

// write writes to the gated socket, as any process can that has it.
func (g *gated) write(b string) {
	g.Helper()
	if _, err := unix.SendmsgN(g.end, []byte(b), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		g.Fatal(err)
	}
}

func (g *gated) sendForeign(what string) {
	g.Helper()
	if err := g.gate.Send(g.end, []byte("late"), false); !errors.Is(err, ErrForeign) {
		g.Errorf("%s: Send: %v, want ErrForeign", what, err)
	}
}

// TestGate: while the gate is closed, the peer receives only what Gate.Send has sent, and
// afterwards everything.
func TestGate(t *testing.T) {
	sides(t, func(t *testing.T, g *gated) {
		g.send("proposal", false)
		g.expect("proposal")
		g.send("confirm", false)
		g.expect("confirm")
		g.send("decline", true)
		g.expect("decline")
		g.exchange(g.conn)
		g.wantPeer("open gate", g.end, PeerNoSMC)
	})
}

// TestGateForeign writes to a gated socket before, between and after messages.
func TestGateForeign(t *testing.T) {
	for _, sent := range [][]string{nil, {"proposal"}, {"proposal", "confirm"}} {
		t.Run(strings.Join(sent, " "), func(t *testing.T) {
			sides(t, func(t *testing.T, g *gated) {
				for _, m := range sent {
					g.send(m, false)
					g.expect(m)
				}
				g.write(foreign)
				g.expectNothing("written")
				g.sendForeign("behind what others wrote")
				if err := g.gate.Send(g.end, []byte("decline"), true); !errors.Is(err, ErrForeign) {
					t.Errorf("last message: %v, want ErrForeign", err)
				}
				g.expectNothing("the gate's last message")
			})
		})
	}
}

// declineMessage is a CLC DECLINE, with or without the flag that ends a link group.
func declineMessage(outOfSync bool) string {
	m := append([]byte{0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x10}, make([]byte, 16)...)
	if outOfSync {
		m[7] |= 8
	}
	return string(append(m, 0xe2, 0xd4, 0xc3, 0xd9))
}

// TestGateWays: no system call that sends can bypass the gate.
func TestGateWays(t *testing.T) {
	payload := func(t *testing.T) *os.File {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.WriteString(foreign); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, send := range map[string]func(t *testing.T, g *gated) error{
		"decline":             func(t *testing.T, g *gated) error { g.write(declineMessage(false)); return nil },
		"decline out of sync": func(t *testing.T, g *gated) error { g.write(declineMessage(true)); return nil },
		"one byte":            func(t *testing.T, g *gated) error { g.write("x"); return nil },
		"much": func(t *testing.T, g *gated) error {
			return unix.Sendto(g.end, make([]byte, 100_000), unix.MSG_DONTWAIT, nil)
		},
		"urgent": func(t *testing.T, g *gated) error { return unix.Sendto(g.end, []byte("x"), unix.MSG_OOB, nil) },
		"no delay": func(t *testing.T, g *gated) error {
			g.must(unix.SetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
			g.write("1")
			g.write("2")
			return nil
		},
		"corked": func(t *testing.T, g *gated) error {
			g.must(unix.SetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_CORK, 1))
			g.write(foreign)
			return unix.SetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_CORK, 0)
		},
		"sendfile": func(t *testing.T, g *gated) error {
			var off int64
			_, err := unix.Sendfile(g.end, int(payload(t).Fd()), &off, len(foreign))
			return err
		},
		"splice": func(t *testing.T, g *gated) error {
			var p [2]int
			g.must(unix.Pipe2(p[:], unix.O_CLOEXEC))
			defer unix.Close(p[0])
			defer unix.Close(p[1])
			if _, err := unix.Write(p[1], []byte(foreign)); err != nil {
				return err
			}
			_, err := unix.Splice(p[0], nil, g.end, nil, len(foreign), 0)
			return err
		},
		"zero copy": func(t *testing.T, g *gated) error {
			g.must(unix.SetsockoptInt(g.end, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1))
			return unix.Sendto(g.end, bytes.Repeat([]byte("x"), 5000), unix.MSG_ZEROCOPY, nil)
		},
		"another descriptor": func(t *testing.T, g *gated) error {
			fd, err := unix.Dup(g.end)
			g.must(err)
			defer unix.Close(fd)
			_, err = unix.Write(fd, []byte(foreign))
			return err
		},
		"shut down": func(t *testing.T, g *gated) error {
			g.write(foreign)
			return unix.Shutdown(g.end, unix.SHUT_WR)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			ways := []*gated{b.gatedClient(unix.AF_INET)}
			if !testing.Short() {
				ways = append(ways, b.gatedServer(unix.AF_INET6))
			}
			for _, g := range ways {
				g.send("proposal", false)
				g.expect("proposal")
				g.must(unix.SetsockoptInt(g.peer, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1))
				g.must(send(t, g))
				g.expectNothing(name)
			}
		})
	}
}

// TestGateHeaders sends packets with longer headers.
func TestGateHeaders(t *testing.T) {
	b := newBed(t)
	raw := func(level, name int, v string) func(fd int) error {
		return func(fd int) error { return unix.SetsockoptString(fd, level, name, v) }
	}
	// Eight bytes of padding options. The kernel sets the other header fields.
	padding := "\x00\x00\x01\x04\x00\x00\x00\x00"
	for name, test := range map[string]struct {
		family int
		set    []func(fd int) error
	}{
		"IPv4 options":          {unix.AF_INET, []func(int) error{raw(unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01\x01\x01\x01\x00")}},
		"hop by hop":            {unix.AF_INET6, []func(int) error{raw(unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, padding)}},
		"destination options":   {unix.AF_INET6, []func(int) error{raw(unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, padding)}},
		"two extension headers": {unix.AF_INET6, []func(int) error{raw(unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, padding), raw(unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, padding)}},
	} {
		t.Run(name, func(t *testing.T) {
			g := b.withT(t).gatedClient(test.family)
			for _, set := range test.set {
				g.must(set(g.end))
			}
			g.send("proposal", false)
			g.expect("proposal")
			g.write(foreign)
			g.expectNothing(name)
		})
	}
}

// TestGateMapped gates an IPv6 socket that uses IPv4.
func TestGateMapped(t *testing.T) {
	b := newBed(t)
	l := b.listener(unix.AF_INET, "0.0.0.0", 0, true)
	fd := b.socket(b.A, unix.AF_INET6)
	b.must(b.prog.GateConnect(fd))
	c := b.connect(fd, l, unix.AF_INET6, "::ffff:"+b.B.Addr())
	g := b.gated(c, c.client, c.server)
	g.send("proposal", false)
	g.expect("proposal")
	g.write(foreign)
	g.expectNothing("mapped address")
}

// TestGatePlainTCP: if one end does not announce SMC, there is no gate for any byte.
func TestGatePlainTCP(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	plain := b.listener(unix.AF_INET, "0.0.0.0", 4001, false)
	fd := b.socket(b.A, unix.AF_INET)
	b.must(b.prog.GateConnect(fd))
	b.must(unix.SetNonblock(fd, true))
	to := sockaddr(unix.AF_INET, netip.AddrPortFrom(b.B.Links[0].IPv4, 4001))
	if err := unix.Connect(fd, to); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	// Write as soon as the socket is connected.
	b.must(netnstest.Until(ioTimeout, func() error {
		_, err := unix.Write(fd, []byte("at once"))
		return err
	}))
	b.must(unix.SetNonblock(fd, false))
	c := conn{client: fd, server: b.accept(plain), clientPort: localPort(t, fd), serverPort: 4001}
	if got := b.read(c.server); got != "at once" {
		t.Errorf("read %q", got)
	}
	b.exchange(c)

	l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4002)
	b.must(b.prog.GateListen(l, 0))
	b.must(unix.Listen(l, 8))
	d := b.dial(l, false)
	b.exchange(d)
	for who, fd := range map[string]int{"client": c.client, "server": d.server} {
		b.wantPeer(who, fd, PeerNoSMC)
		if g, err := b.prog.Gate(fd); g != nil || err != nil {
			t.Errorf("gate of the %s: %v, %v", who, g, err)
		}
	}
	segs := b.segments(capture)
	wantAnnounced(t, segs, "plain server", c, true, false)
	wantAnnounced(t, segs, "plain client", d, false, false)
}

// TestGateBeside: the gate does not change sockets of other processes, with or without a
// mark.
func TestGateBeside(t *testing.T) {
	b := newBed(t)
	g := b.gatedClient(unix.AF_INET)
	g.write(foreign)
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	for _, marked := range []bool{false, true} {
		c := b.dial(l, marked)
		b.exchange(c)
		for _, fd := range []int{c.client, c.server} {
			if g, err := b.prog.Gate(fd); g != nil || err != nil {
				t.Errorf("gate of a socket that has none: %v, %v", g, err)
			}
		}
	}
	g.expectNothing("gated beside others")
}

// TestGateResend drops each message on the network, also with the smallest segments:
// bytes that were sent once may be sent again in any segments.
func TestGateResend(t *testing.T) {
	b := newBed(t)
	up := func(up bool) {
		b.must(b.B.Do(func() error {
			l, err := netlink.LinkByName(b.B.Links[0].Name)
			if err != nil {
				return err
			}
			if up {
				return netlink.LinkSetUp(l)
			}
			return netlink.LinkSetDown(l)
		}))
	}
	sizes := []int{0, 100}
	if testing.Short() {
		sizes = sizes[1:] // a message is in several segments
	}
	for _, mss := range sizes {
		g := b.gatedClient(unix.AF_INET)
		if mss != 0 {
			g.must(unix.SetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_MAXSEG, mss))
		}
		for _, m := range []string{strings.Repeat("proposal", 90), strings.Repeat("confirm", 50)} {
			up(false)
			g.send(m, false)
			time.Sleep(quiet)
			up(true)
			got := ""
			for len(got) < len(m) {
				part := g.read(g.peer)
				if part == "" {
					break
				}
				got += part
			}
			if got != m {
				t.Errorf("segments of %d: the peer got %d bytes, want %d", mss, len(got), len(m))
			}
		}
		g.write(foreign)
		g.expectNothing("after messages that were sent again")
	}
}

// TestGateFIN: a FIN and a reset pass the gate.
func TestGateFIN(t *testing.T) {
	b := newBed(t)
	g := b.gatedClient(unix.AF_INET)
	g.send("proposal", false)
	g.must(unix.Shutdown(g.end, unix.SHUT_WR))
	g.expect("proposal")
	g.expect("")
	g = b.gatedServer(unix.AF_INET)
	g.must(unix.SetsockoptLinger(g.end, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	g.close(g.end)
	if _, err := unix.Read(g.peer, make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("reset: the peer reads: %v", err)
	}
}

// TestGateListening gates sockets that are accepted from a socket that already listens,
// and from one that was marked without a gate.
func TestGateListening(t *testing.T) {
	b := newBed(t)
	for _, marked := range []bool{false, true} {
		l := b.listener(unix.AF_INET, "0.0.0.0", 0, marked)
		if err := b.prog.GateListen(l, 0); errors.Is(err, ErrListening) {
			t.Skipf("%v: boot Linux 6.12", err)
		} else {
			b.must(err)
		}
		c := b.dial(l, true)
		g := b.gated(c, c.server, c.client)
		g.write(foreign)
		g.expectNothing("listening before")
		b.must(b.prog.GateListen(l, 0))
	}
}

// TestGateOption: Gate.Send sends at once although the program has set TCP_CORK, and
// leaves TCP_CORK set.
func TestGateOption(t *testing.T) {
	b := newBed(t)
	for _, cork := range []int{0, 1} {
		g := b.gatedClient(unix.AF_INET)
		g.must(unix.SetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_CORK, cork))
		begin := time.Now()
		g.send("proposal", false)
		g.expect("proposal")
		// With TCP_CORK, TCP holds back data for 200 ms.
		if took := time.Since(begin); took > 190*time.Millisecond {
			t.Errorf("TCP_CORK %d: the message took %v", cork, took)
		}
		if v, err := unix.GetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_CORK); v != cork || err != nil {
			t.Errorf("TCP_CORK is %d, %v, want %d", v, err, cork)
		}
	}
}

// TestGateSmallBuffer: if a message does not fit, Send returns an error and sends
// nothing.
func TestGateSmallBuffer(t *testing.T) {
	b := newBed(t)
	g := b.gatedClient(unix.AF_INET)
	g.must(unix.SetsockoptInt(g.end, unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	if err := g.gate.Send(g.end, make([]byte, 1<<20), false); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("Send: %v, want EAGAIN", err)
	}
	g.expectNothing("message that does not fit")
}
