// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// wantReadable waits until a read of a socket would not wait.
func wantReadable(t *testing.T, fd int) {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	testkind.Eventually(t, "nothing can be read", func() (any, bool) {
		n, err := unix.Poll(p, 0)
		return err, n == 1
	})
}

// TestAtOnce: an accepted connection gets no end for the program if what its peer has sent
// first decides that it is TCP, or is over. The launcher is told whether a rendezvous took
// place.
func TestAtOnce(t *testing.T) {
	elsewhere := proposal
	elsewhere.IPv4 = netip.MustParsePrefix("192.0.2.0/24")
	write := func(b []byte) func(*testing.T, *net.TCPConn) {
		return func(t *testing.T, c *net.TCPConn) {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	const data = "GET / HTTP/1.0\r\n"
	whole := message(t, elsewhere)
	for _, tt := range []struct {
		name  string
		first func(*testing.T, *net.TCPConn)
		want  broker.EventKind
		clc   []wire.CLCType // that the stack sends
		left  string         // that the program can read
	}{
		{"closed", func(_ *testing.T, c *net.TCPConn) { _ = c.CloseWrite() }, broker.EventNotCandidate, nil, ""},
		{"data", write([]byte(data)), broker.EventNotCandidate, nil, data},
		{"declined", write(whole), broker.EventNotCandidate, []wire.CLCType{wire.TypeDecline}, ""},
		{"declined, with data behind", write(append(slices.Clone(whole), data...)), broker.EventNotCandidate, []wire.CLCType{wire.TypeDecline}, data},
		{"no PROPOSAL", write(message(t, wire.Confirm{})), broker.EventFailed, nil, ""},
		{"nothing", nil, broker.EventTaken, nil, ""},
		{"a part of the PROPOSAL", write(whole[:20]), broker.EventTaken, nil, ""},
		{"accepted", write(message(t, proposal)), broker.EventTaken, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			b := newServiceBed(t, host(t), nil)
			gate := &openGate{}
			b.opt.gate = gate
			conn, peer := tcpPair(t)
			f, err := conn.File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fd := int(f.Fd())
			want := settingsOf(t, fd)
			if tt.first != nil {
				tt.first(t, peer)
				wantReadable(t, fd)
			}
			c, err := b.launcher(os.Geteuid()).Accept(fd, netip.AddrPort{}, netip.AddrPort{})
			if err != nil {
				t.Fatal(err)
			}
			ev := next(t, c, tt.want)
			if tt.want == broker.EventTaken {
				return
			}
			next(t, c, broker.EventClosed)
			if ev.Text == "" || ev.PeerSMC != (tt.want == broker.EventNotCandidate) {
				t.Errorf("%+v", ev)
			}
			gate.mu.Lock()
			if !slices.Equal(gate.sent, tt.clc) {
				t.Errorf("the stack sent %v, want %v", gate.sent, tt.clc)
			}
			gate.mu.Unlock()
			if tt.want == broker.EventFailed {
				_ = f.Close() // as a launcher does
				_ = conn.Close()
				wantReset(t, peer)
				return
			}
			got := settingsOf(t, fd)
			got.Nonblock = want.Nonblock // the launcher sets it
			if got != want {
				t.Errorf("the socket has %+v, want %+v", got, want)
			}
			buf := make([]byte, 100)
			n, _, _ := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if s := string(buf[:max(n, 0)]); s != tt.left {
				t.Errorf("the program reads %q, want %q", s, tt.left)
			}
		})
	}
}
