// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/tcpopt"
	"smcr/userstack/wire"
)

// gateBed is an accepted connection that a launcher of another user hands over, whose
// socket has a gate.
type gateBed struct {
	*serviceBed
	gate *openGate
	peer *net.TCPConn
	conn *broker.ClientConn
}

// gateUser is the user of the launcher of a gateBed.
const gateUser = 65534

func newGateBed(t *testing.T, gate *openGate) *gateBed {
	b := newServiceBed(t, host(t), nil)
	b.opt.gate = gate
	l, addr := listenTCP(t)
	peer, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	f, err := accept(t, l).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c, err := b.launcher(gateUser).Accept(int(f.Fd()), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	next(t, c, broker.EventTaken)
	return &gateBed{b, gate, peer, c}
}

// attachEnd hands the service its end of the pair, so that the handshake begins.
func (b *gateBed) attachEnd() {
	b.t.Helper()
	p, err := socketpairAs(gateUser, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Close(p[0]) })
	defer unix.Close(p[1])
	if err := b.conn.Attach(p[1]); err != nil {
		b.t.Fatal(err)
	}
}

func message(t *testing.T, m wire.CLC) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGateVerdict: the gate opens when the connection is TCP, and only then.
func TestGateVerdict(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	prefix := proposal
	prefix.IPv4 = netip.MustParsePrefix("192.0.2.0/24")
	for _, test := range []struct {
		name  string
		says  []byte
		fails error
		kind  broker.EventKind
		want  *openGate
	}{
		{"the stack declines", message(t, prefix), nil, broker.EventReady, &openGate{sent: []wire.CLCType{wire.TypeDecline}, last: true}},
		{"the peer declines", message(t, wire.Decline{}), nil, broker.EventReady, &openGate{reads: []int{wire.DeclineLen}}},
		{"the peer sends data", []byte("GET / HTTP/1.0\r\n"), nil, broker.EventReady, &openGate{data: true}},
		{"the peer accepts", message(t, proposal), nil, 0, &openGate{sent: []wire.CLCType{wire.TypeAccept}}},
		{"others have read the DECLINE", message(t, wire.Decline{}), tcpopt.ErrForeign, broker.EventBroken, &openGate{reads: []int{wire.DeclineLen}}},
		{"others have read data", []byte("GET / HTTP/1.0\r\n"), tcpopt.ErrForeign, broker.EventBroken, &openGate{data: true}},
		{"others have written", message(t, proposal), tcpopt.ErrForeign, broker.EventBroken, &openGate{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newGateBed(t, &openGate{fails: test.fails})
			if _, err := b.peer.Write(test.says); err != nil {
				t.Fatal(err)
			}
			b.attachEnd()
			if test.kind != 0 {
				next(t, b.conn, test.kind)
			} else {
				_ = b.peer.SetReadDeadline(time.Now().Add(testTime))
				if _, err := io.ReadFull(b.peer, make([]byte, wire.HeaderLen)); err != nil {
					t.Fatal(err)
				}
			}
			b.gate.mu.Lock()
			defer b.gate.mu.Unlock()
			g := b.gate
			if !slices.Equal(g.sent, test.want.sent) || g.last != test.want.last || !slices.Equal(g.reads, test.want.reads) || g.data != test.want.data {
				t.Errorf("sent %v, last %v; opened after reading %v, to data %v; want %v, %v, %v, %v",
					g.sent, g.last, g.reads, g.data, test.want.sent, test.want.last, test.want.reads, test.want.data)
			}
		})
	}
}

// TestNoGate: where the kernel has no gate, the stack's own user alone uses SMC.
func TestNoGate(t *testing.T) {
	testkind.System(t)
	if syscall.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	for uid, refused := range map[int]bool{0: false, 65534: true} {
		t.Run(fmt.Sprint("user ", uid), func(t *testing.T) {
			b := newServiceBed(t, host(t), nil)
			b.opt.noGate = fmt.Errorf("%w: planted", tcpopt.ErrNoGate)
			cl := b.launcher(uid)
			err := cl.Listen(t.Context(), listening(t).fd)
			if refused != (err != nil) || refused && !strings.Contains(err.Error(), "planted") {
				t.Errorf("listen: %v, want a refusal: %v", err, refused)
			}
			_, addr := listenTCP(t)
			c, err := cl.Connect(tcpSocket(t, 0), broker.ConnectRequest{Remote: addr})
			if err != nil {
				t.Fatal(err)
			}
			if refused {
				if ev := next(t, c, broker.EventNotCandidate); !strings.Contains(ev.Text, "planted") {
					t.Errorf("%+v", ev)
				}
			} else {
				next(t, c, broker.EventEstablished)
			}
			if n := b.opt.connects.Load() + b.opt.listens.Load(); (n == 0) != refused {
				t.Errorf("%d marks", n)
			}
		})
	}
}

// TestClaimed: a socket on which the service speaks CLC is not handed over once more.
func TestClaimed(t *testing.T) {
	testkind.System(t)
	b := newServiceBed(t, host(t), nil)
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
	cl := b.launcher(0)
	hand := func() *broker.ClientConn {
		c, err := cl.Accept(int(f.Fd()), netip.AddrPort{}, netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := hand()
	next(t, first, broker.EventTaken)
	if ev := next(t, hand(), broker.EventNotCandidate); !strings.Contains(ev.Text, errClaimed.Error()) {
		t.Errorf("second time: %+v", ev)
	}
	_ = first.Cancel()
	next(t, first, broker.EventClosed)
	next(t, hand(), broker.EventTaken)
}
