// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"smcr/internal/plain"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// settings are what the service must leave of a program's socket as it was.
type settings struct {
	Nonblock                       bool
	Nodelay, Keepalive, Idle, Intv int
	Count                          int
}

func settingsOf(t testing.TB, fd int) (s settings) {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Nonblock = flags&unix.O_NONBLOCK != 0
	for _, o := range s.options() {
		if *o.v, err = unix.GetsockoptInt(fd, o.level, o.name); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *settings) apply(t testing.TB, fd int) {
	t.Helper()
	for _, o := range s.options() {
		if err := unix.SetsockoptInt(fd, o.level, o.name, *o.v); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fd, s.Nonblock); err != nil {
		t.Fatal(err)
	}
}

type settable struct {
	level, name int
	v           *int
}

func (s *settings) options() []settable {
	return []settable{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, &s.Nodelay},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, &s.Keepalive},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, &s.Idle},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, &s.Intv},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, &s.Count},
	}
}

// variousSettings differ in each member from one another; the first is what a
// socket has that nobody touched.
var variousSettings = []settings{
	{Idle: 7200, Intv: 75, Count: 9},
	{Nonblock: true, Nodelay: 1, Keepalive: 1, Idle: 77, Intv: 7, Count: 3},
}

// Package net changes TCP_NODELAY, the keep-alive and O_NONBLOCK of a socket
// it is given. All are the program's.
func TestTakeTCP(t *testing.T) {
	testkind.System(t)
	for _, want := range variousSettings {
		t.Run(fmt.Sprintf("%+v", want), func(t *testing.T) {
			checkLeaks(t)
			l, remote := listenTCP(t)
			fd := tcpSocket(t, 0)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: remote.Addr().As4(), Port: int(remote.Port())}); err != nil {
				t.Fatal(err)
			}
			want.apply(t, fd)
			peer := accept(t, l)
			ours, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			sock := broker.NewDescriptor(ours)
			defer sock.Close()
			tcp, restore, err := takeTCP(sock)
			if err != nil {
				t.Fatal(err)
			}
			defer tcp.Close()
			got := settingsOf(t, fd)
			if !got.Nonblock {
				t.Error("package net has a blocking socket: its calls would hold threads")
			}
			got.Nonblock = want.Nonblock
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("taken (-want +got):\n%s", d)
			}
			if _, err := io.WriteString(tcp, "x"); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(peer, make([]byte, 1)); err != nil {
				t.Error(err)
			}
			restore()
			if d := cmp.Diff(want, settingsOf(t, fd)); d != "" {
				t.Errorf("given back (-want +got):\n%s", d)
			}
		})
	}
	t.Run("closed", func(t *testing.T) {
		checkLeaks(t)
		sock := broker.NewDescriptor(tcpSocket(t, 0))
		fd := sock.Take()
		_ = fd // closed by tcpSocket
		if _, _, err := takeTCP(sock); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%v, want os.ErrClosed", err)
		}
	})
	t.Run("not TCP", func(t *testing.T) {
		checkLeaks(t)
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[1])
		sock := broker.NewDescriptor(fds[0])
		defer sock.Close()
		if _, _, err := takeTCP(sock); !errors.Is(err, errSocket) {
			t.Errorf("%v", err)
		}
	})
}

// Where SMC-R cannot be, the program's own connect or socket does, untouched,
// and the launcher is told why.
func TestNotCandidate(t *testing.T) {
	testkind.System(t)
	elsewhere := netip.MustParseAddrPort("192.0.2.1:80")
	here := netip.MustParseAddrPort("127.0.0.1:9")
	for _, tt := range []struct {
		name   string
		remote netip.AddrPort
		tune   func(*userstack.Config)
		before func(*serviceBed)
		want   error
	}{
		{name: "not on link", remote: elsewhere, want: userstack.ErrNotOnLink},
		{name: "no option", remote: here, tune: func(c *userstack.Config) { c.NoOption = true }, want: userstack.ErrNoOption},
		{name: "stack closed", remote: here, before: func(b *serviceBed) { _ = b.s.stack.Close() }, want: userstack.ErrStackClosed},
		{name: "no device", remote: here, tune: func(c *userstack.Config) { c.NetDevs = []string{"eth9"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			b := newServiceBed(t, host(t), tt.tune)
			if tt.before != nil {
				tt.before(b)
			}
			fd := tcpSocket(t, 0)
			want := settingsOf(t, fd)
			c, err := b.launcher(os.Geteuid()).Connect(fd, broker.ConnectRequest{Remote: tt.remote})
			if err != nil {
				t.Fatal(err)
			}
			ev := next(t, c, broker.EventNotCandidate)
			if ev.Text == "" || tt.want != nil && !strings.HasPrefix(ev.Text, plain.Text(tt.want.Error())) {
				t.Errorf("reason %q, want %v", ev.Text, tt.want)
			}
			next(t, c, broker.EventClosed)
			if d := cmp.Diff(want, settingsOf(t, fd)); d != "" {
				t.Errorf("the socket was changed:\n%s", d)
			}
			if n := b.opt.connects.Load(); n != 0 {
				t.Errorf("%d sockets marked", n)
			}
			if _, err := unix.Getpeername(fd); err != unix.ENOTCONN {
				t.Errorf("getpeername: %v, want ENOTCONN", err)
			}
		})
	}
}

func TestListen(t *testing.T) {
	testkind.System(t)
	b := newServiceBed(t, host(t), nil)
	if err := b.launcher(os.Geteuid()).Listen(t.Context(), tcpSocket(t, 0)); err != nil {
		t.Fatal(err)
	}
	if n := b.opt.listens.Load(); n != 1 {
		t.Errorf("marked %d times", n)
	}
}

// A peer that does not speak SMC: the program keeps its socket, and the
// fallback is counted.
func TestPeerWithoutSMC(t *testing.T) {
	fallbacks := func(b *serviceBed) (client, server uint64) {
		fb, err := b.s.stack.Control().Fallbacks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range fb.Reasons {
			if r.Reason != uint32(userstack.ReasonPeerNoSMC) {
				t.Errorf("a fallback for %#x", r.Reason)
			}
		}
		return uint64(fb.ClientTotal), uint64(fb.ServerTotal)
	}
	t.Run("connect", func(t *testing.T) {
		checkLeaks(t)
		b := newServiceBed(t, host(t), nil)
		b.opt.smc.Store(false)
		l, remote := listenTCP(t)
		fd := tcpSocket(t, 0)
		want := settingsOf(t, fd)
		c, err := b.launcher(os.Geteuid()).Connect(fd, broker.ConnectRequest{Remote: remote})
		if err != nil {
			t.Fatal(err)
		}
		if ev := next(t, c, broker.EventEstablished); ev.PeerSMC {
			t.Error("the peer speaks SMC")
		}
		next(t, c, broker.EventClosed)
		accept(t, l)
		if d := cmp.Diff(want, settingsOf(t, fd)); d != "" {
			t.Errorf("the socket was changed:\n%s", d)
		}
		if c, s := fallbacks(b); c != 1 || s != 0 {
			t.Errorf("%d, %d fallbacks", c, s)
		}
	})
	t.Run("accept", func(t *testing.T) {
		checkLeaks(t)
		b := newServiceBed(t, host(t), nil)
		b.opt.smc.Store(false)
		conn, _ := tcpPair(t)
		f, err := conn.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want := settingsOf(t, int(f.Fd()))
		c, err := b.launcher(os.Geteuid()).Accept(int(f.Fd()), netip.AddrPort{}, netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		if ev := next(t, c, broker.EventNotCandidate); ev.Text != userstack.ReasonPeerNoSMC.Text() || ev.Reason != uint32(userstack.ReasonPeerNoSMC) {
			t.Errorf("reason %q", ev.Text)
		}
		next(t, c, broker.EventClosed)
		if d := cmp.Diff(want, settingsOf(t, int(f.Fd()))); d != "" {
			t.Errorf("the socket was changed:\n%s", d)
		}
		if c, s := fallbacks(b); c != 0 || s != 1 {
			t.Errorf("%d, %d fallbacks", c, s)
		}
	})
	t.Run("accept, no longer connected", func(t *testing.T) {
		b := newServiceBed(t, host(t), nil)
		c, err := b.launcher(os.Geteuid()).Accept(tcpSocket(t, 0), netip.AddrPort{}, netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		if ev := next(t, c, broker.EventNotCandidate); ev.Text != reasonLeft {
			t.Errorf("reason %q", ev.Text)
		}
	})
}

func TestRefused(t *testing.T) {
	testkind.System(t)
	checkLeaks(t)
	b := newServiceBed(t, host(t), nil)
	l, remote := listenTCP(t)
	_ = l.Close()
	c, err := b.launcher(os.Geteuid()).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: remote})
	if err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventFailed); ev.Errno != syscall.ECONNREFUSED {
		t.Errorf("%+v", ev)
	}
	next(t, c, broker.EventClosed)
}

// readProposal takes what a client begins the rendezvous with.
func readProposal(t testing.TB, c net.Conn) {
	t.Helper()
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(head[5:]))-8); err != nil {
		t.Fatal(err)
	}
}

// declined runs a connect up to the peer's decline.
func declined(t *testing.T, set settings) (fd int, c *broker.ClientConn, peer *net.TCPConn) {
	t.Helper()
	checkLeaks(t)
	b := newServiceBed(t, host(t), nil)
	l, remote := listenTCP(t)
	fd = tcpSocket(t, 0)
	set.apply(t, fd)
	c, err := b.launcher(os.Geteuid()).Connect(fd, broker.ConnectRequest{Remote: remote, Nonblock: set.Nonblock})
	if err != nil {
		t.Fatal(err)
	}
	peer = accept(t, l)
	if ev := next(t, c, broker.EventEstablished); !ev.PeerSMC {
		t.Fatal("the peer does not speak SMC")
	}
	if err := c.Proceed(); err != nil {
		t.Fatal(err)
	}
	readProposal(t, peer)
	msg, err := wire.Decline{Diagnosis: smc.DiagNoRoute}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Write(msg); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventReady); ev.Mode != broker.ModeTCP || ev.Text == "" {
		t.Fatalf("%+v", ev)
	}
	return fd, c, peer
}

// A declined connection is the program's TCP socket again, as it was.
func TestDeclineReleased(t *testing.T) {
	testkind.System(t)
	for _, want := range variousSettings {
		t.Run(fmt.Sprintf("%+v", want), func(t *testing.T) {
			fd, c, peer := declined(t, want)
			if err := c.Release(); err != nil {
				t.Fatal(err)
			}
			next(t, c, broker.EventClosed)
			if d := cmp.Diff(want, settingsOf(t, fd)); d != "" {
				t.Errorf("given back (-want +got):\n%s", d)
			}
			if _, err := unix.Write(fd, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if _, err := io.ReadFull(peer, got); err != nil || string(got) != "hello" {
				t.Errorf("the peer got %q, %v", got, err)
			}
		})
	}
}

// A program that has a socketpair already is relayed over TCP.
func TestDeclineRelayed(t *testing.T) {
	fd, c, peer := declined(t, variousSettings[0])
	p := attachEnd(t, c)
	p.write("hello")
	p.shutdown()
	if got, err := io.ReadAll(peer); err != nil || string(got) != "hello" {
		t.Errorf("the peer got %q, %v", got, err)
	}
	if _, err := io.WriteString(peer, "answer"); err != nil {
		t.Fatal(err)
	}
	_ = peer.Close()
	p.read("answer")
	p.wantEnd(nil)
	p.close()
	if ev := next(t, c, broker.EventClosed); ev.Text != "" {
		t.Errorf("ended by %q", ev.Text)
	}
	_ = fd
}

// attachEnd gives the service its end of a pair and returns the program's.
func attachEnd(t testing.TB, c *broker.ClientConn) *program {
	t.Helper()
	p, endCopy := attachKept(t, c)
	_ = unix.Close(endCopy)
	return p
}

// attachAs is attachEnd for a launcher of user uid.
func attachAs(uid int) func(testing.TB, *broker.ClientConn) *program {
	return func(t testing.TB, c *broker.ClientConn) *program {
		t.Helper()
		fds, err := socketpairAs(uid, unix.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		socktest.Bound(t, fds[0])
		p := &program{t: t, fd: fds[0]}
		t.Cleanup(p.close)
		defer unix.Close(fds[1])
		if err := c.Attach(fds[1]); err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// attachKept also returns a copy of the service's end, as a launcher has it.
func attachKept(t testing.TB, c *broker.ClientConn) (p *program, endCopy int) {
	t.Helper()
	p, end := socketpair(t)
	f, err := end.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer end.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var aerr error
	if err := rc.Control(func(fd uintptr) {
		if aerr = c.Attach(int(fd)); aerr == nil {
			endCopy, aerr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		}
	}); err != nil || aerr != nil {
		t.Fatal(err, aerr)
	}
	return p, endCopy
}

// A peer that announced SMC and then ends the connection: there is no data to be lost, and the
// launcher connects again. After two such connections, nothing is announced to the peer.
func TestRendezvousFails(t *testing.T) {
	testkind.System(t)
	checkLeaks(t)
	b := newServiceBed(t, host(t), nil)
	l, remote := listenTCP(t)
	for range 2 {
		c, err := b.launcher(os.Geteuid()).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: remote})
		if err != nil {
			t.Fatal(err)
		}
		peer := accept(t, l)
		next(t, c, broker.EventEstablished)
		if err := c.Proceed(); err != nil {
			t.Fatal(err)
		}
		readProposal(t, peer)
		_ = peer.Close()
		if ev := next(t, c, broker.EventNotCandidate); ev.Reason != uint32(smc.DiagCopied) || ev.Text == "" {
			t.Errorf("%+v", ev)
		}
		next(t, c, broker.EventClosed)
	}
	c, err := b.launcher(os.Geteuid()).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: remote})
	if err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventNotCandidate); ev.Reason != uint32(smc.DiagCopied) {
		t.Errorf("third connection: %+v", ev)
	}
}
