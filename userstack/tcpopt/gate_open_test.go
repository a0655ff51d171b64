// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestGateOpen opens the gate because the peer has declined. Then the bytes that other
// processes wrote meanwhile are sent.
func TestGateOpen(t *testing.T) {
	sides(t, func(t *testing.T, g *gated) {
		g.send("proposal", false)
		g.expect("proposal")
		_, err := unix.Write(g.peer, []byte("declined+data"))
		g.must(err)
		buf := make([]byte, len("declined"))
		if n, err := unix.Read(g.end, buf); n != len(buf) || err != nil {
			t.Fatal(n, err)
		}
		g.write("early")
		g.expectNothing("before the gate opens")
		if err := g.gate.Open(g.end, len(buf)-1); !errors.Is(err, ErrForeign) {
			t.Errorf("one byte was read by somebody else: Open: %v, want ErrForeign", err)
		}
		g.expectNothing("gate that did not open")
		g.must(g.gate.Open(g.end, len(buf)))
		g.expect("early")
		if got := g.read(g.end); got != "+data" {
			t.Errorf("read %q", got)
		}
		g.exchange(g.conn)
		g.wantPeer("open gate", g.end, PeerNoSMC)
	})
}

// TestGateHere: a connection with the same address at both ends has a gate, as any other: packets to
// an address of this host may go to another one, by DNAT for instance. The gate can be opened
// without a message.
func TestGateHere(t *testing.T) {
	b := newBed(t)
	for _, test := range []struct {
		family   int
		from, to string
	}{
		{unix.AF_INET, "127.0.0.1", "127.0.0.1"},
		{unix.AF_INET, b.B.Addr(), b.B.Addr()},
		{unix.AF_INET6, "::1", "::1"},
		{unix.AF_INET6, b.B.Addr6(), b.B.Addr6()},
		{unix.AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.1"},
		{unix.AF_INET, "127.0.0.1", "127.0.0.2"},
		{unix.AF_INET6, "::1", b.B.Addr6()},
	} {
		l := b.bind(b.B, test.family, test.to, 0)
		b.must(b.prog.GateListen(l, 0))
		b.must(unix.Listen(l, 8))
		fd := b.bind(b.B, test.family, test.from, 0)
		b.must(b.prog.GateConnect(fd))
		c := b.connect(fd, l, test.family, test.to)
		for _, fd := range []int{c.client, c.server} {
			b.wantPeer(test.from+" to "+test.to, fd, PeerSMC)
			g, err := b.prog.Gate(fd)
			b.must(err)
			if g == nil {
				t.Fatalf("%s to %s: no gate", test.from, test.to)
			}
			b.must(g.OpenHere(fd))
		}
		b.exchange(c)
	}
}

// TestGateOpenAtEnd: the FIN of the peer does not count as a byte that another process
// has read.
func TestGateOpenAtEnd(t *testing.T) {
	b := newBed(t)
	g := b.gatedServer(unix.AF_INET)
	_, err := unix.Write(g.peer, []byte("declined"))
	g.must(err)
	g.must(unix.Shutdown(g.peer, unix.SHUT_WR))
	if got := g.read(g.end); got != "declined" {
		t.Fatalf("read %q", got)
	}
	if got := g.read(g.end); got != "" {
		t.Fatalf("read %q", got)
	}
	g.must(g.gate.Open(g.end, len("declined")))
	g.write("answer")
	g.expect("answer")
}

// TestGateOpenToData opens the gate to a peer that sends data, unless another process
// could have changed what the stack sees of this data.
func TestGateOpenToData(t *testing.T) {
	isData := func(b []byte) bool { return !bytes.HasPrefix(b, []byte("CLC")) }
	noop := func(*gated) {}
	for _, test := range []struct {
		name, sent string
		before     func(g *gated)
		ok         bool
	}{
		{"data", "GET /", noop, true},
		{"much data", strings.Repeat("0123456789", 3000), noop, true},
		{"nothing", "", noop, false},
		{"nothing, reading shut down", "", func(g *gated) { g.must(unix.Shutdown(g.end, unix.SHUT_RD)) }, false},
		{"end", "", func(g *gated) { g.must(unix.Shutdown(g.peer, unix.SHUT_WR)) }, true},
		{"data and end", "GET /", func(g *gated) { g.must(unix.Shutdown(g.peer, unix.SHUT_WR)) }, true},
		{"message", "CLC message", noop, false},
		{"a byte taken", "CLC message", func(g *gated) {
			_, err := unix.Read(g.end, make([]byte, 1))
			g.must(err)
		}, false},
		{"looked at from the second byte on", "CLC message", func(g *gated) {
			if err := unix.SetsockoptInt(g.end, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 1); err != nil {
				g.Skipf("SO_PEEK_OFF: %v: needs Linux 6.9", err)
			}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newBed(t).gatedServer(unix.AF_INET)
			_, err := unix.Write(g.peer, []byte(test.sent))
			g.must(err)
			g.must(netnstest.Until(ioTimeout, func() error {
				n, err := unix.IoctlGetInt(g.end, unix.SIOCINQ)
				if err == nil && n < len(test.sent) {
					err = unix.EAGAIN
				}
				return err
			}))
			test.before(g)
			time.Sleep(10 * time.Millisecond)
			err = g.gate.OpenToData(g.end, isData)
			g.write("answer")
			if test.ok {
				g.must(err)
				g.expect("answer")
				return
			}
			if !errors.Is(err, ErrForeign) {
				t.Errorf("OpenToData: %v, want ErrForeign", err)
			}
			g.expectNothing("gate that did not open")
		})
	}
}

// TestGateReconnect: a gate ends with its connection, also after an attempt that failed.
func TestGateReconnect(t *testing.T) {
	b := newBed(t)
	g := b.gatedClient(unix.AF_INET)
	g.write(foreign)
	b.disconnect(g.end)
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	plain := b.connect(g.end, l, unix.AF_INET, b.B.Addr())
	b.wantPeer("server of the second connection", plain.server, PeerNoSMC)
	b.exchange(plain)
	b.disconnect(g.end)
	b.must(b.prog.GateConnect(g.end))
	c := b.connect(g.end, l, unix.AF_INET, b.B.Addr())
	g = b.gated(c, c.client, c.server)
	g.send("proposal", false)
	g.expect("proposal")
	g.write(foreign)
	g.expectNothing("third connection")
}

// TestNoGate attaches another program for packets to the cgroup first, in the old way
// that allows no second one. Everything that needs no gate works.
func TestNoGate(t *testing.T) {
	b := newBed(t)
	dir := privateCgroup(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	b.must(err)
	defer prog.Close()
	f, err := os.Open(dir)
	b.must(err)
	defer f.Close()
	b.must(link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: ebpf.AttachCGroupInetEgress}))
	defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: ebpf.AttachCGroupInetEgress})
	b.prog = attach(t, Options{CgroupPath: dir})
	fd := b.socket(b.A, unix.AF_INET)
	for range 2 {
		for what, err := range map[string]error{"GateConnect": b.prog.GateConnect(fd), "GateListen": b.prog.GateListen(fd, 0)} {
			if !errors.Is(err, ErrNoGate) {
				t.Errorf("%s: %v, want ErrNoGate", what, err)
			}
			wantNotPermitted(t, what, err, "exclusively attached", dir)
		}
	}
	if _, err := b.prog.Peer(fd); !errors.Is(err, ErrNotMarked) {
		t.Errorf("a socket that cannot be gated is marked: %v", err)
	}
	b.exchange(b.dial(b.listener(unix.AF_INET, "0.0.0.0", 4001, true), true))
}

// TestGateClosed: the gate ends with the Program.
func TestGateClosed(t *testing.T) {
	b := newBed(t)
	g := b.gatedClient(unix.AF_INET)
	g.write("before")
	g.expectNothing("gated")
	b.must(b.prog.Close())
	_, err := b.prog.Gate(g.end)
	for what, err := range map[string]error{
		"GateConnect": b.prog.GateConnect(g.end), "GateListen": b.prog.GateListen(g.end, 0), "Gate": err,
		"Send": g.gate.Send(g.end, nil, false), "Open": g.gate.Open(g.end, 0), "OpenToData": g.gate.OpenToData(g.end, nil),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	g.expect("before")
	g.exchange(g.conn)
}

// TestGateLazy: the gate program is attached when it is first needed.
func TestGateLazy(t *testing.T) {
	b := newBed(t)
	b.dial(b.listener(unix.AF_INET, "0.0.0.0", 4001, true), true)
	if b.prog.gate.link != nil {
		t.Error("attached for sockets that need no gate")
	}
	b.must(b.prog.GateListen(b.bind(b.B, unix.AF_INET, "0.0.0.0", 4002), 0))
	if b.prog.gate.link == nil {
		t.Error("not attached")
	}
}

// TestGatePrivileges: the gate needs no more privileges than the option.
func TestGatePrivileges(t *testing.T) {
	if mounts, err := cgroupMounts(); err != nil || len(mounts) == 0 {
		t.Skipf("needs a mounted cgroup v2 (%v): mount -t cgroup2 none /sys/fs/cgroup/unified", err)
	}
	b := newBed(t)
	fd := b.socket(b.A, unix.AF_INET)
	for _, caps := range [][]uint{{unix.CAP_BPF, unix.CAP_NET_ADMIN}, {unix.CAP_SYS_ADMIN}} {
		onThread(t, func() error {
			if err := keepCapabilities(caps...); err != nil {
				return err
			}
			p, err := Attach(Options{})
			if err != nil {
				return err
			}
			return errors.Join(p.GateConnect(fd), p.Close())
		})
	}
}
