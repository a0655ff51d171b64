// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// elsewhere calls f in a network namespace of its own, in which loopback is up.
func elsewhere(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root for a network namespace")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		lo, err := unix.NewIfreq("lo")
		if err == nil {
			lo.SetUint16(unix.IFF_UP)
			err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
		}
		if err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// handed is a socket that a launcher hands over, and what keeps it so.
type handed struct {
	fd   int
	rest []int
}

// connected makes a TCP connection over loopback and returns its accepted end.
func connected(t *testing.T) (h handed) {
	t.Helper()
	h = listening(t)
	l := h.fd
	sa, err := unix.Getsockname(l)
	if err != nil {
		t.Error(err)
		return h
	}
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return h
	}
	h.rest = append(h.rest, l, client)
	if err := unix.Connect(client, sa); err != nil {
		t.Error(err)
		return h
	}
	if h.fd, _, err = unix.Accept4(l, unix.SOCK_CLOEXEC); err != nil {
		t.Error(err)
	}
	return h
}

func listening(t *testing.T) handed {
	t.Helper()
	h := opened(t, unix.AF_INET, unix.SOCK_STREAM, 0)
	if err := unix.Bind(h.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Error(err)
	}
	if err := unix.Listen(h.fd, 1); err != nil {
		t.Error(err)
	}
	return h
}

func opened(t *testing.T, domain, typ, proto int) handed {
	t.Helper()
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		t.Error(err)
	}
	return handed{fd: fd}
}

// TestHandedOver: a launcher may hand over what it likes. The stack touches
// nothing but TCP sockets of its network namespace that are as they should be.
func TestHandedOver(t *testing.T) {
	testkind.System(t)
	const listens, connects, accepted = 1, 2, 4
	const fresh = listens | connects
	const netns = "another network namespace"
	for _, tt := range []struct {
		name  string
		open  func(t *testing.T) handed
		bad   int    // how it is handed over
		wants string // what the answer says
	}{
		{"UDP", func(t *testing.T) handed { return opened(t, unix.AF_INET, unix.SOCK_DGRAM, 0) }, fresh | accepted, "not a stream socket"},
		{"unix", func(t *testing.T) handed { return opened(t, unix.AF_UNIX, unix.SOCK_STREAM, 0) }, fresh | accepted, "not an IPv4 or IPv6 socket"},
		{"netlink", func(t *testing.T) handed { return opened(t, unix.AF_NETLINK, unix.SOCK_RAW, 0) }, fresh | accepted, "not an IPv4 or IPv6 socket"},
		{"MPTCP", func(t *testing.T) handed { return opened(t, unix.AF_INET, unix.SOCK_STREAM, 262) }, fresh | accepted, "not a TCP socket"},
		{"listening", listening, connects | accepted, "it listens"},
		{"connected", connected, fresh, "it is in use"},
		{"fresh", func(t *testing.T) handed { return opened(t, unix.AF_INET6, unix.SOCK_STREAM, 0) }, accepted, reasonLeft},
		{"fresh, elsewhere", func(t *testing.T) (h handed) {
			elsewhere(t, func() { h = opened(t, unix.AF_INET, unix.SOCK_STREAM, 0) })
			return h
		}, fresh, netns},
		{"connected, elsewhere", func(t *testing.T) (h handed) {
			elsewhere(t, func() { h = connected(t) })
			return h
		}, accepted, netns},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "MPTCP" {
				if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 262); err != nil {
					t.Skipf("the kernel has no MPTCP: %v", err)
				} else {
					_ = unix.Close(fd)
				}
			}
			b := newServiceBed(t, host(t), nil)
			l, remote := listenTCP(t)
			cl := b.launcher(os.Geteuid())
			h := tt.open(t)
			defer func() {
				for _, fd := range append(h.rest, h.fd) {
					_ = unix.Close(fd)
				}
			}()
			flags, err := unix.FcntlInt(uintptr(h.fd), unix.F_GETFL, 0)
			if err != nil {
				t.Fatal(err)
			}
			native := func(c *broker.ClientConn, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if ev := next(t, c, broker.EventNotCandidate); !strings.Contains(ev.Text, tt.wants) {
					t.Errorf("reason %q, want %q", ev.Text, tt.wants)
				}
				next(t, c, broker.EventClosed)
			}
			if tt.bad&listens != 0 {
				if err := cl.Listen(t.Context(), h.fd); err == nil || !strings.Contains(err.Error(), tt.wants) {
					t.Errorf("Listen: %v, want %q", err, tt.wants)
				}
			}
			if tt.bad&connects != 0 {
				native(cl.Connect(h.fd, broker.ConnectRequest{Remote: remote}))
			}
			if tt.bad&accepted != 0 {
				native(cl.Accept(h.fd, netip.AddrPort{}, netip.AddrPort{}))
			}
			if c, l := b.opt.connects.Load(), b.opt.listens.Load(); c != 0 || l != 0 {
				t.Errorf("%d sockets marked to connect, %d to listen", c, l)
			}
			if tt.bad == connects|accepted {
				// A listener of a stack that has ended.
				if err := cl.Listen(t.Context(), h.fd); err != nil || b.opt.listens.Load() != 1 {
					t.Errorf("Listen: %v, %d marked", err, b.opt.listens.Load())
				}
			}
			if now, err := unix.FcntlInt(uintptr(h.fd), unix.F_GETFL, 0); err != nil || now != flags {
				t.Errorf("flags %#x, %v; %#x before", now, err, flags)
			}
			// Nobody was connected to, or spoken to.
			_ = l.SetDeadline(time.Now().Add(20 * time.Millisecond))
			if c, err := l.Accept(); err == nil {
				_ = c.Close()
				t.Error("the stack connected the socket")
			}
			if len(h.rest) > 0 {
				if n, _, err := unix.Recvfrom(h.rest[len(h.rest)-1], make([]byte, 64), unix.MSG_DONTWAIT); err != unix.EAGAIN {
					t.Errorf("the peer was sent %d bytes, %v", n, err)
				}
			}
		})
	}
}

// TestBeyondQuota: for an accepted connection beyond a user's quota the peer is
// told to stay with TCP, and the program has its socket as it was.
func TestBeyondQuota(t *testing.T) {
	testkind.System(t)
	const nobody = 65534
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	checkLeaks(t)
	b := newServiceBed(t, host(t), nil)
	b.srv.Quota = quota.New(quota.Limits{Total: 10000, User: 2}) // the session's
	cl := b.launcher(nobody)
	l, addr := listenTCP(t)
	peer, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	f, err := accept(t, l).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	want := settingsOf(t, fd)
	c, err := cl.Accept(fd, netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	prop, err := proposal.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Write(append(prop, "data"...)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 28)
	_ = peer.SetReadDeadline(time.Now().Add(testTime))
	if _, err := io.ReadFull(peer, answer); err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseCLC(answer)
	if d, ok := m.(wire.Decline); !ok || d.Diagnosis != smc.DiagMem {
		t.Errorf("the peer is told %+v, %v", m, err)
	}
	if ev := next(t, c, broker.EventNotCandidate); ev.Errno != 0 || !strings.Contains(ev.Text, "user 65534 has 2 of at most 2 descriptors") {
		t.Errorf("%+v", ev)
	}
	next(t, c, broker.EventClosed)
	if d := cmp.Diff(want, settingsOf(t, fd)); d != "" {
		t.Errorf("the socket was changed:\n%s", d)
	}
	buf := make([]byte, 16)
	if n, err := unix.Read(fd, buf); string(buf[:max(n, 0)]) != "data" {
		t.Errorf("the program reads %q, %v", buf[:max(n, 0)], err)
	}
	// Without SMC there is nobody to tell.
	b.opt.smc.Store(false)
	if c, err = cl.Accept(fd, netip.AddrPort{}, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventNotCandidate); ev.Errno != 0 || !strings.Contains(ev.Text, "user 65534 has") {
		t.Errorf("%+v", ev)
	}
	if err := cl.Listen(t.Context(), tcpSocket(t, 0)); !errors.Is(err, syscall.EUSERS) {
		t.Errorf("Listen: %v", err)
	}
}

// proposal offers SMC-R version 1.
var proposal = wire.Proposal{GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}, IPv4: netip.MustParsePrefix("127.0.0.0/8")}
