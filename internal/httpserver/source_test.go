// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/inetdiag"
	"smcr/internal/testing/testkind"
)

// TestUserAt: the kernel says root where nobody is known, and finds listening sockets.
func TestUserAt(t *testing.T) {
	message := func(state uint8, port uint16, uid, inode uint32) inetdiag.Message {
		return inetdiag.Message{State: state, ID: inetdiag.ID{Remote: netip.AddrPortFrom(netip.IPv6Loopback(), port)}, UID: uid, Inode: inode}
	}
	for name, tt := range map[string]struct {
		m  inetdiag.Message
		ok bool
	}{
		"connected":                  {message(unix.BPF_TCP_ESTABLISHED, 9791, 1000, 5), true},
		"has closed half":            {message(unix.BPF_TCP_FIN_WAIT2, 9791, 1000, 5), true},
		"has closed it":              {message(unix.BPF_TCP_FIN_WAIT2, 9791, 0, 0), false},
		"is in TIME_WAIT":            {message(unix.BPF_TCP_TIME_WAIT, 9791, 0, 0), false},
		"listens at the same port":   {message(unix.BPF_TCP_LISTEN, 0, 0, 5), false},
		"is connected to other port": {message(unix.BPF_TCP_ESTABLISHED, 80, 0, 5), false},
	} {
		if uid, ok := userAt(tt.m, 9791); ok != tt.ok || ok && uid != 1000 {
			t.Errorf("%s: user %d, %v", name, uid, ok)
		}
	}
}

// dialAs dials as another user.
func dialAs(uid int, network, from, to, device string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
		var d net.Dialer
		d.SetMultipathTCP(false)
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		if device != "" {
			d.Control = func(_, _ string, rc syscall.RawConn) (err error) {
				return errors.Join(rc.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }), err)
			}
		}
		c, err = d.DialContext(context.Background(), network, to)
	}()
	<-done
	return c, err
}

// needRoot skips a test that acts for several users.
func needRoot(t *testing.T) {
	t.Helper()
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be several users")
	}
}

// TestSourceOf: who a connection is from, whatever address and device its user has chosen.
func TestSourceOf(t *testing.T) {
	needRoot(t)
	const uid = 65432
	user := source{user: uid, own: true}
	for name, tt := range map[string]struct{ network, listen, from, to, device string }{
		"IPv4":              {"tcp4", "127.0.0.1", "", "127.0.0.1", ""},
		"another address":   {"tcp4", "127.0.0.1", "127.7.7.7", "127.0.0.1", ""},
		"IPv6":              {"tcp6", "::1", "", "::1", ""},
		"both":              {"tcp4", "::", "", "127.0.0.1", ""},
		"bound to loopback": {"tcp4", "127.0.0.1", "127.7.7.8", "127.0.0.1", "lo"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", net.JoinHostPort(tt.listen, "0"))
			if errors.Is(err, unix.EADDRNOTAVAIL) {
				t.Skip("this host has no IPv6")
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			c, err := dialAs(uid, tt.network, tt.from, net.JoinHostPort(tt.to, port), tt.device)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if from := sourceOf(s); from != user {
				t.Errorf("%+v, want %+v", from, user)
			}
			c.Close()
			testkind.Eventually(t, "nobody has the socket", func() (any, bool) { from := sourceOf(s); return from, from == loopback })
			// What listens here is not what another host connects from.
			at := l.Addr().(*net.TCPAddr).AddrPort()
			if uid, ok := userOf(at, netip.AddrPortFrom(at.Addr(), 9)); ok {
				t.Errorf("user %d listens, and is taken for connected", uid)
			}
		})
	}
}

// TestKeptAlive: a user who has all connections that it can get does not keep others from theirs: idle ones on which
// something was asked, halves of requests, requests that take for ever, and answers that are not read.
func TestKeptAlive(t *testing.T) {
	needRoot(t)
	const attacker, victim = 65431, 65432
	for name, tt := range map[string]struct {
		request string
		reads   bool
	}{
		"idle":     {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", true},
		"silent":   {"", false},
		"half":     {"GET / HTTP/1.1\r\nHost:", false},
		"held":     {"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n", false},
		"not read": {"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			addr, _ := startWith(t, map[string]http.Handler{
				"GET /": http.HandlerFunc(hello),
				"GET /hold": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					select {
					case <-hold:
					case <-r.Context().Done():
					}
				}),
				"GET /large": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) }),
			}, patient)
			t.Cleanup(func() { close(hold) }) // before the server ends
			for i := range 2 * MaxConns {
				from := netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i%MaxConns)}).String() // as if it were many hosts, one of which others are on
				c, err := dialAs(attacker, "tcp4", from, addr, "")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				_ = c.SetDeadline(time.Now().Add(testkind.Patience))
				_, _ = io.WriteString(c, tt.request) // it may be closed already
				if !tt.reads {
					continue
				}
				r, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, r.Body)
			}
			for _, uid := range []int{victim, 0} {
				kept := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					return dialAs(uid, "tcp4", "", addr, "")
				}}, Timeout: testkind.Patience}
				for range 3 {
					r, err := kept.Get("http://" + addr + "/")
					if err != nil {
						t.Fatalf("user %d: %v", uid, err)
					}
					if b, err := io.ReadAll(r.Body); err != nil || string(b) != "hello" {
						t.Errorf("user %d: %q, %v", uid, b, err)
					}
					_ = r.Body.Close()
				}
				kept.CloseIdleConnections()
			}
		})
	}
}
