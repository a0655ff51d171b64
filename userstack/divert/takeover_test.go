// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"

	"smcr/internal/testing/testkind"
)

// successor is a second Diverter of a host of a bed.
type successor struct {
	*Diverter
	taken atomic.Int64
}

// succeed makes the successor of the Diverter of a host. It takes nothing yet. older says which of them sees packets first.
func (b *bed) succeed(i int, older bool) *successor {
	b.t.Helper()
	s := &successor{}
	host := b.A
	if i == 1 {
		host = b.B
	}
	cfg := b.d[i].cfg
	cfg.Drained = true
	cfg.Handle = func(_ context.Context, f *Flow, handled func()) {
		s.taken.Add(1)
		go func() {
			defer handled()
			splice(b, f)
		}()
	}
	b.must(host.Do(func() (err error) {
		s.Diverter, err = New(cfg)
		return err
	}))
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.t.Errorf("close: %v", err)
		}
	})
	index := b.index(host, host.Links[0].Name)
	b.must(s.AddDevice(index))
	if older { // the kernel has the program that was added last run first
		b.must(b.d[i].RemoveDevice(index))
		b.must(b.d[i].AddDevice(index))
	}
	b.must(s.Attach(ownCgroup(b.t), Does{Connect: true, Accept: true}))
	return s
}

// halfOpen returns how many connections are announced and not yet taken.
func (d *Diverter) halfOpen() (n int) {
	var key bpfTuple
	var k bpfFlow
	for all := d.bpf.Flows.Iterate(); all.Next(&key, &k); {
		if k.Held == 0 {
			n++
		}
	}
	return n
}

// wantOnly waits until the filters and devices of a host are those of one Diverter.
func (d *Diverter) wantOnly(t *testing.T) {
	t.Helper()
	testkind.Eventually(t, "no other stack has filters or devices", func() (any, bool) {
		all, err := d.filters()
		other := fmt.Sprint(err)
		ok := err == nil && len(all) > 0
		for _, f := range all {
			if f.handle != d.id {
				ok = false
			}
			other += fmt.Sprintf(" %x at %d", f.handle, f.device)
		}
		links, err := d.host.LinkList()
		for _, l := range links {
			if n := l.Attrs().Name; IsOurs(n) && n != d.ns.names.veth && n != d.ns.hold {
				ok, other = false, other+" "+n
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return fmt.Sprint(other, err, d.earlier), ok && err == nil && len(d.earlier) == 0
	})
}

// TestTakeover has Diverters of both hosts that others take over from: what they have announced is theirs until its end,
// and everything else is that of the others, whichever of them sees packets first.
func TestTakeover(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, test := range []struct {
		name  string
		older [2]bool
	}{
		{"newer first", [2]bool{false, false}},
		{"older first", [2]bool{true, true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, splice)
			next := [2]*successor{b.succeed(0, test.older[0]), b.succeed(1, test.older[1])}
			wantNext := func(n int64) {
				t.Helper()
				if x, y := next[0].taken.Load(), next[1].taken.Load(); x != n || y != n {
					t.Errorf("the successors took %d and %d connections, want %d", x, y, n)
				}
			}
			l := b.listen(b.B.Addr())
			b.works(l)
			client, server := b.connect(l)
			b.wantTaken(2, 2)

			// A connection whose SYN-ACK comes only later: the client sends SYN again, and the server SYN-ACK.
			b.must(b.A.SetLoss(0, 1))
			halfway := make(chan [2]*net.TCPConn, 1)
			go func() {
				c, s := b.connect(l)
				halfway <- [2]*net.TCPConn{c, s}
			}()
			for i := range b.d {
				testkind.Eventually(t, "the connection is announced", func() (any, bool) {
					n := b.d[i].halfOpen()
					return n, n == 1
				})
			}
			for i := range b.d {
				b.must(b.d[i].Drain())
			}
			for _, s := range next {
				b.must(s.Resume())
			}
			b.must(b.A.SetLoss(0, 0))
			half := <-halfway
			b.wantTaken(3, 3)
			wantNext(0)
			b.exchanges(client, server)
			b.exchanges(half[0], half[1])

			// New ones, also with the ports of one of the others right after its end.
			b.works(l)
			b.wantTaken(3, 3)
			wantNext(1)
			dialer := net.Dialer{LocalAddr: client.LocalAddr()}
			for i := range 5 {
				server.Close() // first, so that no TIME-WAIT keeps the client from its port
				if n, err := client.Read(make([]byte, 9)); n != 0 || err != io.EOF {
					t.Fatalf("read %d bytes, %v; want the end of the stream", n, err)
				}
				client.Close()
				b.must(b.A.Do(func() error {
					accepted := make(chan net.Conn, 1)
					go func() {
						c, _ := l.Accept()
						accepted <- c
					}()
					c, err := dialer.Dial("tcp", l.Addr().String())
					if err != nil {
						return fmt.Errorf("connection %d: %w", i, err)
					}
					client, server = c.(*net.TCPConn), (<-accepted).(*net.TCPConn)
					b.exchanges(client, server)
					return nil
				}))
			}
			client.Close()
			server.Close()
			b.exchanges(half[0], half[1])
			b.wantTaken(3, 3)
			if !b.d[0].Busy() || !b.d[1].Busy() {
				t.Error("a Diverter does not know of its connection")
			}
			half[0].Close()
			half[1].Close()
			for i, s := range next {
				testkind.Eventually(t, "the connections have ended", func() (any, bool) { return left(b.d[i]), !b.d[i].Busy() })
				client, server := b.connect(l)
				b.must(b.d[i].Close())
				b.exchanges(client, server)
				client.Close()
				server.Close()
				b.must(s.collect())
				s.wantOnly(t)
			}
			before := next[0].taken.Load()
			b.works(l)
			if n := next[0].taken.Load() - before; n != 1 {
				t.Errorf("the successor took %d connections, want 1", n)
			}
			b.d[0], b.d[1] = next[0].Diverter, next[1].Diverter
			b.gone()
		})
	}
}

// TestTakenBack has Diverters that take over and end before they have: the others go on.
func TestTakenBack(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	next := b.succeed(0, false)
	l := b.listen(b.B.Addr())
	client, server := b.connect(l)
	b.must(b.d[0].Drain())
	b.works(l) // nobody takes it
	b.wantTaken(1, 1)
	b.must(next.Close())
	b.must(b.d[0].Resume())
	b.works(l)
	b.wantTaken(2, 2)
	b.exchanges(client, server)
	b.must(b.d[0].collect())
	b.d[0].wantOnly(t)
}

// TestTakeoverFromKilled has a Diverter whose process is killed beside its successor: its connections are reset, and
// nothing of it stays.
func TestTakeoverFromKilled(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, p := newKilled(t)
	next := b.succeed(0, false)
	b.must(b.A.Do(func() error { return next.Follow(func(string) bool { return true }) }))
	l := b.listen(b.B.Addr())
	client, server := b.connect(l)
	b.wantTaken(0, 1)
	b.must(next.Resume()) // the other one has drained
	p.Kill()
	for name, c := range map[string]*net.TCPConn{"client": client, "server": server} {
		if _, err := c.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want ECONNRESET", name, err)
		}
	}
	next.wantOnly(t)
	b.works(l)
	if n := next.taken.Load(); n != 1 {
		t.Errorf("the successor took %d connections, want 1", n)
	}
}

// TestKilledAndLeft has devices of stacks that were killed and whose namespaces stay: a stack finds a number all the same.
func TestKilledAndLeft(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	for i := 1; i < maxStacks; i++ {
		if _, err := b.A.Output(t.Context(), "ip", "link", "add", namesOf(i).veth, "type", "veth", "peer", "name", fmt.Sprint("left", i)); err != nil {
			t.Fatal(err)
		}
	}
	next := b.succeed(0, false)
	if got, want := next.ns.names, namesOf(1); got != want {
		t.Errorf("the devices are %+v, want %+v", got, want)
	}
	b.must(b.d[0].Drain())
	b.must(next.Resume())
	b.works(b.listen(b.B.Addr()))
	if n := next.taken.Load(); n != 1 {
		t.Errorf("the successor took %d connections, want 1", n)
	}
}

func TestDeviceNames(t *testing.T) {
	for i := range maxStacks {
		n := namesOf(i)
		for _, name := range []string{n.veth, n.inside, n.hold} {
			if !IsOurs(name) || len(name) > 15 {
				t.Error(name)
			}
		}
	}
	for _, name := range []string{"", "smcr", "smcrin", "smcrx", "eth0", "smcr0x", "xsmcr0", "smcr-1"} {
		if IsOurs(name) {
			t.Error(name)
		}
	}
}

// TestInheritedUndecided: what a killed stack had announced is counted as undecided by the one that inherits it, until it is forgotten there.
func TestInheritedUndecided(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	d := b.d[1]
	spec, err := loadBpf()
	b.must(err)
	var of earlier
	of.flows, err = ebpf.NewMap(spec.Maps[bpfMapFlows])
	b.must(err)
	defer of.flows.Close()
	of.ways, err = ebpf.NewMap(spec.Maps[bpfMapWays])
	b.must(err)
	defer of.ways.Close()
	key := Tuple{netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:1024")}.key()
	b.must(put(of.flows, key, &bpfFlow{Id: 1, Server: 1, Held: 1, Slots: [6]uint32{7, 8, noSlot, 9, noSlot, noSlot}}, 0))
	d.mu.Lock()
	d.inherit(of)
	d.mu.Unlock()
	if n := d.undecided.all(); n != 1 {
		t.Errorf("%d are undecided, want 1", n)
	}
	d.expire()
	if n := d.slots(); n != 0 {
		t.Errorf("%d are counted when it is forgotten", n)
	}
}
