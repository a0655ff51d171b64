// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/quota"
)

// accepting is a listener of which somebody always accepts.
type accepting struct {
	net.Listener
	all chan net.Conn
}

func accept(l net.Listener) accepting {
	a := accepting{l, make(chan net.Conn, 1024)}
	go func() {
		defer close(a.all)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.all <- c
		}
	}()
	return a
}

func (a accepting) Accept() (net.Conn, error) {
	c, ok := <-a.all
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// backlogBed is an originBed whose listener has a queue of so many, and always accepts.
type backlogBed struct {
	*originBed
	before map[string]int
	last   int
}

// setBacklog has a listening socket have a queue of so many.
func setBacklog(l net.Listener, n int) error {
	rc, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	return errors.Join(rc.Control(func(fd uintptr) { ferr = unix.Listen(int(fd), n) }), ferr)
}

func newBacklogBed(t *testing.T, v6 bool, backlog int, tune func(*Config)) *backlogBed {
	t.Helper()
	b := &backlogBed{originBed: newOriginBedWith(t, v6, tune)}
	b.must(setBacklog(b.l, backlog))
	b.l = accept(b.l)
	b.before = b.counters()
	return b
}

// counters returns how often B's queues were full, or A has sent a packet again.
func (b *backlogBed) counters() map[string]int {
	b.t.Helper()
	all := map[string]int{}
	for h, names := range map[*netnstest.Host][]string{
		b.B: {"ListenOverflows", "ListenDrops", "TCPReqQFullDoCookies", "TCPReqQFullDrop", "SyncookiesSent"},
		b.A: {"TCPTimeouts", "TCPSynRetrans"},
	} {
		of, err := h.Counters(names...)
		b.must(err)
		maps.Copy(all, of)
	}
	return all
}

// waitsForNobody checks that the listener always had room.
func (b *backlogBed) waitsForNobody() {
	b.t.Helper()
	for name, n := range b.counters() {
		if n != b.before[name] {
			b.t.Errorf("%s has grown by %d", name, n-b.before[name])
		}
	}
}

// machine makes connections of a host with an Ethernet address, and returns those that are announced.
func (b *backlogBed) machine(mac byte, n int, half bool) (all []*scripted) {
	b.t.Helper()
	for range n {
		x := b.nth(b.s.at.Addr(), 100+int(mac), mac)
		b.last++
		x.at = netip.AddrPortFrom(x.at.Addr(), uint16(4000+b.last))
		b.neighbour(x)
		switch announced := x.opens(half); {
		case announced:
			all = append(all, x)
		case half:
			x.segment(layers.TCP{RST: true}, x.snd, x.rcv, nil, "")
		default:
			b.accepts(x)
		}
	}
	return all
}

// accepts waits until the connection of an endpoint is accepted: the queue of those that wait for that is no longer, either.
func (b *backlogBed) accepts(x *scripted) {
	b.t.Helper()
	for {
		c, err := b.l.Accept()
		b.must(err)
		b.t.Cleanup(func() { c.Close() })
		if c.RemoteAddr().String() == x.at.String() {
			return
		}
	}
}

// TestBacklog has hosts make connections that say nothing to a listener with a short queue: one has a quarter of it, and all together three eighths.
// So the listener has room for all others, of whom those that it knows use SMC-R, and the kernel asks none of them to come again.
func TestBacklog(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, c := range []struct {
		backlog  int
		v6, half bool
		// settings of the server's kernel
		cookies, most string
		// what one host and all that are not known may have
		one, all int
	}{
		{backlog: 8, one: 2, all: 3},
		{backlog: 8, v6: true, one: 2, all: 3},
		{backlog: 8, half: true, one: 2, all: 3},
		{backlog: 128, one: 32, all: 48},
		{backlog: 5, cookies: "0", one: 1, all: 1},
		{backlog: 128, cookies: "0", most: "32", one: 6, all: 9},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			b := newBacklogBed(t, c.v6, c.backlog, func(*Config) {})
			for name, value := range map[string]string{"tcp_syncookies": c.cookies, "tcp_max_syn_backlog": c.most} {
				if value != "" {
					b.must(b.B.Command(t.Context(), "sysctl", "-qw", "net.ipv4."+name+"="+value).Run())
				}
			}
			all := b.machine(1, c.backlog+10, c.half)
			if len(all) != c.one {
				t.Errorf("%d connections of one host are announced, want %d", len(all), c.one)
			}
			for mac := byte(2); mac < 10; mac++ {
				all = append(all, b.machine(mac, c.one+1, c.half)...)
			}
			if len(all) != c.all {
				t.Errorf("%d connections of hosts that nobody knows are announced, want %d", len(all), c.all)
			}
			b.takes(false)
			b.must(b.d[1].SetKnown([]Known{b.known(b.host(c.v6), b.s)}))
			for range 3 {
				b.takes(true)
			}
			b.must(b.d[1].SetKnown(nil))
			b.waitsForNobody()
			for _, x := range all {
				x.segment(layers.TCP{RST: true}, x.snd, x.rcv, nil, "")
			}
			testkind.Eventually(t, "nothing is counted any more", func() (any, bool) { n := b.d[1].slots(); return n, n == 0 })
			b.takes(true)
			b.waitsForNobody()
		})
	}
}

// host returns the address by which A connects.
func (b *backlogBed) host(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(b.A.Addr6())
	}
	return netip.MustParseAddr(b.A.Addr())
}

// known has a host with the Ethernet address of an endpoint be known.
func (b *backlogBed) known(host netip.Addr, x *scripted) Known {
	var mac [6]byte
	copy(mac[:], x.from)
	return Known{host, quota.OriginOfNeighbour(mac)}
}

// TestBacklogOfKnown has hosts that are known say nothing: one has three eighths of the queue, and all leave half.
func TestBacklogOfKnown(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBacklogBed(t, false, 8, func(*Config) {})
	var all []Known
	for mac := byte(1); mac <= 3; mac++ {
		x := b.nth(b.s.at.Addr(), 100+int(mac), mac)
		all = append(all, b.known(x.at.Addr(), x))
	}
	b.must(b.d[1].SetKnown(all))
	for i, want := range []int{3, 1, 0, 0} {
		if n := len(b.machine(byte(i+1), 8, false)); n != want {
			t.Errorf("%d connections of host %d are announced, want %d", n, i+1, want)
		}
	}
	b.takes(false)
	b.waitsForNobody()
}

// TestBacklogs: what a host has at one listener is not taken from another one, also of the same port.
func TestBacklogs(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBacklogBed(t, false, 8, func(*Config) {})
	if n := len(b.machine(1, 4, false)); n != 2 {
		t.Fatalf("%d are announced at the first listener, want 2", n)
	}
	first := b.l
	b.l = accept(b.listen(b.B.Addr()))
	if n := len(b.machine(1, 4, false)); n != 4 {
		t.Errorf("%d are announced at a listener with a long queue, want 4", n)
	}
	b.l = first
	if n := len(b.machine(2, 4, false)); n != 1 {
		t.Errorf("%d of another host are announced at the first listener, want 1", n)
	}
	b.waitsForNobody()
}

// TestBacklogOfOne: one connection after the other uses SMC-R, however short the queue is, with MPTCP and without.
func TestBacklogOfOne(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, backlog := range []int{1, 2, 3, 5} {
		for _, multipath := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d, MPTCP %t", backlog, multipath), func(t *testing.T) {
				t.Parallel()
				b := newBacklogBed(t, false, backlog, func(*Config) {})
				var c net.ListenConfig
				c.SetMultipathTCP(multipath)
				b.must(b.B.Do(func() (err error) {
					b.originBed.l, err = c.Listen(t.Context(), "tcp", net.JoinHostPort(b.B.Addr(), "0"))
					return err
				}))
				b.must(setBacklog(b.l, backlog))
				b.l = accept(b.l)
				for range 5 {
					b.takes(true)
				}
			})
		}
	}
}

// TestBacklogUnknown: with a kernel that does not say where the queue of a listener is, the other bounds hold.
func TestBacklogUnknown(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for name, types := range map[string]func() (*btf.Spec, error){
		"none":     func() (*btf.Spec, error) { return nil, fmt.Errorf("no types: %w", ebpf.ErrNotSupported) },
		"no right": func() (*btf.Spec, error) { return nil, syscall.EACCES },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBacklogBed(t, false, 64, func(c *Config) { c.types, c.undecided = types, few })
			if n := len(b.machine(1, few, false)); n != fewStrangers/2 {
				t.Errorf("%d connections of one host are announced, want %d", n, fewStrangers/2)
			}
			b.takes(true)
		})
	}
}
