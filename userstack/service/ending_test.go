// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// taken has the service take over an accepted connection and returns its peer,
// the launcher's descriptor of it, and the program's end of the pair.
func taken(t *testing.T, b *serviceBed) (c *broker.ClientConn, peer *net.TCPConn, sock *os.File, app int) {
	t.Helper()
	conn, peer := tcpPair(t)
	sock, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() })
	_ = conn.Close()
	if c, err = b.launcher(os.Geteuid()).Accept(int(sock.Fd()), netip.AddrPort{}, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	next(t, c, broker.EventTaken)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	defer unix.Close(fds[1])
	tv := unix.NsecToTimeval(int64(testTime))
	if err := errors.Join(unix.SetNonblock(fds[1], true), unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(fds[1]); err != nil {
		t.Fatal(err)
	}
	return c, peer, sock, fds[0]
}

// A peer that announced SMC, and that nobody told that this end does, sends data
// instead of a PROPOSAL: it is the program's.
func TestAcceptData(t *testing.T) {
	for _, first := range []string{"GET / HTTP/1.0\r\n\r\n", "x", "\xe2\xd4\xc3\xd9"} {
		t.Run(first[:1], func(t *testing.T) {
			checkLeaks(t)
			b := newServiceBed(t, host(t), nil)
			c, peer, sock, app := taken(t, b)
			_ = sock.Close()
			if _, err := io.WriteString(peer, first); err != nil {
				t.Fatal(err)
			}
			if ev := next(t, c, broker.EventReady); ev.Mode != broker.ModeTCP || ev.Text == "" || ev.Reason == 0 {
				t.Errorf("%+v, want TCP", ev)
			}
			buf := make([]byte, 100)
			if n, err := unix.Read(app, buf); err != nil || string(buf[:n]) != first {
				t.Errorf("the program reads %q, %v", buf[:max(n, 0)], err)
			}
			if _, err := unix.Write(app, []byte("answer")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(peer, buf[:6]); err != nil || string(buf[:6]) != "answer" {
				t.Errorf("the peer reads %q, %v", buf[:6], err)
			}
			fb, err := b.s.stack.Control().Fallbacks(t.Context())
			if err != nil || fb.ServerTotal != 1 {
				t.Errorf("%+v, %v: want one fallback", fb, err)
			}
		})
	}
}

// A service that ends in a CLC handshake leaves the TCP connection to the
// launcher, which has a descriptor of it: it neither resets nor says anything.
func TestEndsInHandshake(t *testing.T) {
	t.Run("accept", func(t *testing.T) {
		checkLeaks(t)
		b := newServiceBed(t, host(t), nil)
		c, peer, sock, app := taken(t, b)
		testkind.Eventually(t, "it does not wait for a PROPOSAL", func() (any, bool) {
			stacks := allStacks()
			return stacks, strings.Contains(stacks, "userstack.peekMore(")
		})
		b.end()
		for ev := range c.Events() {
			if ev.Kind != broker.EventClosed {
				t.Errorf("%+v", ev)
			}
		}
		if _, err := unix.Write(app, []byte("x")); err != nil && err != unix.EPIPE { // its own end is closed
			t.Error(err)
		}
		if _, err := unix.Write(int(sock.Fd()), []byte("over TCP")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 8)
		if _, err := io.ReadFull(peer, buf); err != nil || string(buf) != "over TCP" {
			t.Errorf("the peer reads %q, %v", buf, err)
		}
		_ = sock.Close()
		if _, err := peer.Read(buf); err != io.EOF {
			t.Errorf("then %v, want the end of file", err)
		}
	})
	t.Run("connect", func(t *testing.T) {
		checkLeaks(t)
		b := newServiceBed(t, host(t), nil)
		l, remote := listenTCP(t)
		c, err := b.launcher(os.Geteuid()).Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: remote})
		if err != nil {
			t.Fatal(err)
		}
		peer := accept(t, l)
		if ev := next(t, c, broker.EventEstablished); !ev.PeerSMC {
			t.Fatal("the peer does not speak SMC")
		}
		if err := c.Proceed(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(peer, make([]byte, wire.HeaderLen)); err != nil {
			t.Fatal(err)
		}
		b.end()
		for ev := range c.Events() {
			if ev.Kind != broker.EventClosed {
				t.Errorf("%+v", ev)
			}
		}
	})
}
