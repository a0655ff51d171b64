// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
)

var (
	addrA = netip.MustParsePrefix("10.0.0.1/24")
	addrB = netip.MustParsePrefix("10.0.0.2/24")
)

// twoHosts makes a world with two hosts on a LAN.
func twoHosts(t testing.TB, c Config) (w *World, a, b *Host) {
	w = New(c)
	t.Cleanup(w.Close)
	a = w.Host("a", NetDev{Name: "eth0", Addrs: []netip.Prefix{addrA}})
	b = w.Host("b", NetDev{Name: "eth0", Addrs: []netip.Prefix{addrB}})
	return w, a, b
}

func open(t testing.TB, h *Host) rdmaverbs.Device {
	t.Helper()
	d, err := h.Provider().Open(context.Background(), "sim-eth0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func pair(t testing.TB, c Config) (*World, *Host, *Host, verbstest.Pair) {
	w, a, b := twoHosts(t, c)
	return w, a, b, verbstest.Pair{A: verbstest.End{Dev: open(t, a)}, B: verbstest.End{Dev: open(t, b)}}
}

// TestVerbs runs the suite of all providers in bubbles, over a fabric with delays and
// losses.
func TestVerbs(t *testing.T) {
	for _, c := range verbstest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			for seed := range uint64(3) {
				synctest.Test(t, func(t *testing.T) {
					conf := Config{Seed: seed, Delay: 5 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.02}
					c.Run(t, func(t testing.TB) verbstest.Pair {
						_, _, _, p := pair(t, conf)
						return p
					})
				})
			}
		})
	}
}

// TestVerbsRealTime runs the suite without a bubble, with both ends on one device.
func TestVerbsRealTime(t *testing.T) {
	verbstest.Run(t, func(t testing.TB) verbstest.Pair {
		_, a, _ := twoHosts(t, Config{})
		d := open(t, a)
		return verbstest.Pair{A: verbstest.End{Dev: d}, B: verbstest.End{Dev: d}}
	})
}

func TestObjectsAreCounted(t *testing.T) {
	w, _, _ := twoHosts(t, Config{})
	t.Run("use", func(t *testing.T) {
		d := open(t, w.hosts[0])
		a, _ := verbstest.Connect(t, verbstest.Pair{A: verbstest.End{Dev: d}, B: verbstest.End{Dev: d}}, verbstest.Config{})
		a.MR(4096, verbstest.All)
		if got, want := w.Objects(), (Objects{Devices: 1, PDs: 2, MRs: 1, CQs: 4, QPs: 2}); got != want {
			t.Errorf("objects %+v, want %+v", got, want)
		}
	})
	if got := w.Objects(); got != (Objects{}) {
		t.Errorf("objects left: %+v", got)
	}
}

// TestUnreachable checks, for each cause why the peer cannot be reached, that requests
// fail after the last retry and not before.
func TestUnreachable(t *testing.T) {
	tests := []struct {
		name string
		do   func(w *World, a, b *Host, peer *verbstest.Conn)
	}{
		{"PeerVanished", func(_ *World, _, b *Host, _ *verbstest.Conn) { b.SetVanished(true) }},
		{"SwitchDown", func(w *World, _, _ *Host, _ *verbstest.Conn) { w.SetLAN("lan", false) }},
		{"PortDown", func(_ *World, a, _ *Host, _ *verbstest.Conn) { a.SetPort("eth0", false) }},
		{"PeerPortDown", func(_ *World, _, b *Host, _ *verbstest.Conn) { b.SetPort("eth0", false) }},
		{"PeerDeviceGone", func(_ *World, _, b *Host, _ *verbstest.Conn) { b.Remove("eth0") }},
		{"PeerQPClosed", func(_ *World, _, _ *Host, peer *verbstest.Conn) { peer.QP.Close() }},
		{"PeerQPInError", func(_ *World, _, _ *Host, peer *verbstest.Conn) { peer.QP.ToError() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ha, hb, p := pair(t, Config{Delay: time.Millisecond})
				a, b := verbstest.Connect(t, p, verbstest.Config{Timeout: 15, RetryCnt: 7})
				b.Recv(rdmaverbs.RecvWR{ID: 1}, rdmaverbs.RecvWR{ID: 2})
				send := rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled}
				a.Send(send)
				a.OK(1, 1)
				tt.do(w, ha, hb, b)
				start := time.Now()
				send.ID = 2
				a.Send(send, rdmaverbs.SendWR{ID: 3, Op: rdmaverbs.OpSendImm})
				a.Fails(a.SendCQ, 2, rdmaverbs.StatusRetryExcErr)
				a.Fails(a.SendCQ, 3, rdmaverbs.StatusFlushErr)
				if d, want := time.Since(start), 8*ackTimeout(15); d < want || d > want+50*time.Millisecond {
					t.Errorf("failed after %v, want %v", d, want)
				}
			})
		})
	}
}

// TestOutage checks that an outage that is shorter than the retries only causes a delay,
// also if it is the answer that is lost.
func TestOutage(t *testing.T) {
	for _, at := range []time.Duration{0, 1500 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			_, _, hb, p := pair(t, Config{Delay: time.Millisecond})
			a, b := verbstest.Connect(t, p, verbstest.Config{Timeout: 15, RetryCnt: 7})
			b.Recv(rdmaverbs.RecvWR{ID: 1}, rdmaverbs.RecvWR{ID: 2})
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled})
			time.Sleep(at)
			hb.SetVanished(true)
			time.Sleep(500 * time.Millisecond)
			hb.SetVanished(false)
			a.OK(1, 1)
			b.OKRecv(1, 1)
			b.None(b.RecvCQ) // the request was executed once
		})
	}
}

func TestDeviceEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ha, _, p := pair(t, Config{})
		a, _ := verbstest.Connect(t, p, verbstest.Config{})
		a.Recv(rdmaverbs.RecvWR{ID: 4})
		ha.SetPort("eth0", false)
		if pa, _ := p.A.Dev.Port(1); pa.State != rdmaverbs.PortDown {
			t.Errorf("port state %d", pa.State)
		}
		ha.SetPort("eth0", true)
		ha.Remove("eth0")
		a.Fails(a.RecvCQ, 4, rdmaverbs.StatusFlushErr)
		if _, err := p.A.Dev.AllocPD(); !errors.Is(err, rdmaverbs.ErrNoDevice) {
			t.Errorf("AllocPD of a device that is gone: %v", err)
		}
		if _, err := ha.Provider().Open(t.Context(), "sim-eth0"); !errors.Is(err, rdmaverbs.ErrNoDevice) {
			t.Errorf("Open of a device that is gone: %v", err)
		}
		p.A.Dev.Close()
		var got []rdmaverbs.AsyncEventType
		for ev := range p.A.Dev.Events() {
			got = append(got, ev.Type)
		}
		want := []rdmaverbs.AsyncEventType{
			rdmaverbs.EventPortErr, rdmaverbs.EventPortActive,
			rdmaverbs.EventPortErr, rdmaverbs.EventDeviceFatal, rdmaverbs.EventQPFatal, rdmaverbs.EventDeviceFatal,
		}
		if !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		ha.Restore("eth0")
		d, err := ha.Provider().Open(t.Context(), "sim-eth0")
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
	})
}

// TestNotifyInsideClose checks that Close calls the notify function for the requests that
// it flushes, and holds no lock then.
func TestNotifyInsideClose(t *testing.T) {
	w, a, _ := twoHosts(t, Config{})
	d := open(t, a)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	var q rdmaverbs.QP
	var c rdmaverbs.CQ
	calls := 0
	c, err = d.CreateCQ(8, func() {
		calls++
		q.State() // a deadlock if a lock is held
		w.Objects()
	})
	if err != nil {
		t.Fatal(err)
	}
	if q, err = pd.CreateQP(rdmaverbs.QPInit{SendCQ: c, RecvCQ: c, MaxRecv: 4, Port: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.PostRecv(rdmaverbs.RecvWR{ID: 1}, rdmaverbs.RecvWR{ID: 2}); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	var wcs [4]rdmaverbs.WC
	if n := c.Poll(wcs[:]); n != 2 || calls != 1 {
		t.Errorf("%d completions and %d calls, want 2 and 1", n, calls)
	}
	for _, err := range []error{c.Close(), pd.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestSameSeed runs the same load twice and compares the arrival times of all messages.
func TestSameSeed(t *testing.T) {
	run := func(seed uint64) (out []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			_, _, _, p := pair(t, Config{Seed: seed, Delay: time.Microsecond, Jitter: time.Millisecond, Loss: 0.1})
			a, b := verbstest.Connect(t, p, verbstest.Config{})
			start := time.Now()
			for i := range uint64(50) {
				b.Recv(rdmaverbs.RecvWR{ID: i})
				a.Send(rdmaverbs.SendWR{ID: i, Op: rdmaverbs.OpSendImm})
				b.OKRecv(i, 1)
				out = append(out, time.Since(start))
			}
		})
		return out
	}
	if a, b := run(7), run(7); !slices.Equal(a, b) {
		t.Errorf("two runs of one seed differ:\n%v\n%v", a, b)
	}
	if a, b := run(7), run(8); slices.Equal(a, b) {
		t.Error("two seeds do the same")
	}
}

func connect(t testing.TB, w *World) (a, b *TCPConn) {
	t.Helper()
	a, b, err := w.Connect(netip.AddrPortFrom(addrA.Addr(), 0), netip.AddrPortFrom(addrB.Addr(), 80))
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestTCP(t *testing.T) {
	w, _, _ := twoHosts(t, Config{Seed: 1, Delay: time.Microsecond, Jitter: 5 * time.Microsecond, Loss: 0.01, RetransmitDelay: 50 * time.Microsecond})
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := connect(t, w)
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

func TestTCPEnds(t *testing.T) {
	const late = time.Second
	read := func(c net.Conn) error { _, err := c.Read(make([]byte, 8)); return err }
	tests := []struct {
		name string
		do   func(a, b *TCPConn) // what a and b do before b is read
		want error
	}{
		{"FIN", func(a, _ *TCPConn) { a.Close() }, io.EOF},
		{"HalfClose", func(a, _ *TCPConn) { a.CloseWrite() }, io.EOF},
		{"LingerZero", func(a, _ *TCPConn) { a.SetLinger(0); a.Close() }, syscall.ECONNRESET},
		{"UnreadData", func(a, b *TCPConn) { b.Write([]byte("x")); time.Sleep(late); a.Close() }, syscall.ECONNRESET},
		{"WriteToClosed", func(a, b *TCPConn) {
			a.Close()
			time.Sleep(late)
			b.Write([]byte("x"))
			time.Sleep(late)
		}, syscall.ECONNRESET},
		{"Closed", func(_, b *TCPConn) { b.Close() }, net.ErrClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _, _ := twoHosts(t, Config{Delay: time.Millisecond})
				a, b := connect(t, w)
				tt.do(a, b)
				time.Sleep(late)
				if err := read(b); !errors.Is(err, tt.want) {
					t.Errorf("read: %v, want %v", err, tt.want)
				}
			})
		})
	}
}

func TestTCPToVanishedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, hb := twoHosts(t, Config{Delay: time.Millisecond})
		a, b := connect(t, w)
		hb.SetVanished(true)
		if _, err := a.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		hb.SetVanished(false)
		if got, err := io.ReadAll(io.LimitReader(b, 4)); err != nil || string(got) != "late" {
			t.Fatalf("after the outage: %q, %v", got, err)
		}
		hb.SetVanished(true)
		if _, err := a.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("read after all retransmissions: %v, want ETIMEDOUT", err)
		}
	})
}

func TestRoute(t *testing.T) {
	w := New(Config{})
	t.Cleanup(w.Close)
	pfx := netip.MustParsePrefix
	h := w.Host("h",
		NetDev{Name: "eth0", Addrs: []netip.Prefix{pfx("10.0.0.1/24"), pfx("fd00::1/64")}},
		NetDev{Name: "eth1", Addrs: []netip.Prefix{pfx("10.0.0.3/24")}},
		NetDev{Name: "eth2", LAN: "other", Addrs: []netip.Prefix{pfx("10.1.0.1/24")}, VLAN: 7},
	)
	tests := []struct{ to, want string }{
		{"10.0.0.9", "eth0 vlan 0 peers [eth1]"},
		{"fd00::9", "eth0 vlan 0 peers []"},
		{"10.1.0.9", "eth2 vlan 7 peers []"},
	}
	for _, tt := range tests {
		rt, err := h.Route(netip.Addr{}, netip.MustParseAddr(tt.to))
		if got := fmt.Sprintf("%s vlan %d peers %v", rt.NetDev, rt.VLAN, rt.Peers); err != nil || got != tt.want {
			t.Errorf("route to %s: %s, %v; want %s", tt.to, got, err, tt.want)
		}
	}
	if _, err := h.Route(netip.Addr{}, netip.MustParseAddr("192.0.2.1")); !errors.Is(err, ErrNoRoute) {
		t.Errorf("route to nowhere: %v", err)
	}
}
