// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestStaysPlain has a server whose first SYN-ACK goes without the option, because there is no room or SMC-R is not possible. The client
// takes the connection for TCP: later SYN-ACKs do not announce, whatever has changed.
func TestStaysPlain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	s := b.scripted(b.A, b.B, false, 3001)
	s.peer = addrPort(l)
	b.must(b.d[1].SetPlaces([]Place{{Why: smc.DiagNoSMCDev}}))
	synack := func(t *layers.TCP) bool { return t.SYN && t.ACK && t.Ack == s.snd+1 }
	s.segment(layers.TCP{SYN: true}, s.snd, 0, withOption(), "")
	if announced(s.hears("SYN-ACK", synack)) {
		t.Fatal("it announces SMC where that is not possible")
	}
	b.must(b.d[1].SetPlaces(nil))
	if announced(s.hears("SYN-ACK again", synack)) {
		t.Error("SYN-ACK that is sent again announces SMC")
	}
	s.segment(layers.TCP{SYN: true}, s.snd, 0, withOption(), "")
	if announced(s.hears("SYN-ACK for SYN that is sent again", synack)) {
		t.Error("SYN-ACK for SYN that is sent again announces SMC")
	}
	// Another connection of the same ports is not that one.
	s.snd++
	s.segment(layers.TCP{RST: true}, s.snd, 0, nil, "")
	s.snd = 1 << 20
	s.segment(layers.TCP{SYN: true}, s.snd, 0, withOption(), "")
	if !announced(s.hears("SYN-ACK of another connection", synack)) {
		t.Error("SYN-ACK of another connection does not announce SMC")
	}
}

// floodMost is how long a connection beside a flood may take to be made on a busy machine: less than what TCP waits when it repeats twice.
const floodMost = 3 * time.Second

// TestFloodOfTaken has a peer send SYNs on its connection that was taken, without end and as fast as it can. Others connect beside it.
func TestFloodOfTaken(t *testing.T) {
	testkind.System(t)
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	s := b.scripted(b.A, b.B, false, 3001)
	s.peer = addrPort(l)
	program := b.scriptedClient(s, l)
	defer program.Close()
	taken := b.taken[1].Load()
	ctx, stop := context.WithCancel(t.Context())
	var floods sync.WaitGroup
	n := 0
	floods.Go(func() {
		p := s.frame(layers.TCP{SYN: true}, 1<<20, 0, withOption(), "")
		for ctx.Err() == nil {
			if _, err := unix.Write(s.fd, p); err == nil {
				n++
			}
		}
	})
	slowest := time.Duration(0)
	for range 200 {
		began := time.Now()
		client, server := b.connect(l)
		slowest = max(slowest, time.Since(began))
		b.exchanges(client, server)
	}
	stop()
	floods.Wait()
	t.Logf("%d SYNs, the slowest connection took %v", n, slowest)
	if slowest > floodMost {
		t.Errorf("a connection took %v", slowest)
	}
	if n := b.taken[1].Load() - taken; n != 200 {
		t.Errorf("%d of 200 connections were taken", n)
	}
	s.says("hello")
	got := make([]byte, 5)
	if _, err := program.Read(got); err != nil || string(got) != "hello" {
		t.Errorf("the program got %q, %v", got, err)
	}
}

// descriptors returns how many this process has.
func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestFloodOfPorts has a program connect again and again from one port, and close at once: its first connection was taken. Others connect
// beside it.
func TestFloodOfPorts(t *testing.T) {
	testkind.System(t)
	b := newBed(t, func(_ *bed, f *Flow) {
		if err := agree(f); err != nil {
			f.Reset() // the program has closed its socket
			return
		}
		_ = f.Splice()
	})
	l := b.listen(b.B.Addr())
	before := descriptors(t)
	again := func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Bind(int(fd), sockaddr(netip.AddrPortFrom(netip.MustParseAddr(b.A.Addr()), 3001), 0))
	}
	b.control = func(_, _ string, c syscall.RawConn) error { return c.Control(again) }
	client, server := b.connect(l)
	b.exchanges(client, server)
	b.control = nil
	ctx, stop := context.WithCancel(t.Context())
	var floods sync.WaitGroup
	n := 0
	floods.Go(func() {
		client.Close()
		if err := b.A.Do(func() error {
			for ctx.Err() == nil {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				again(uintptr(fd))
				if errors.Is(unix.Connect(fd, sockaddr(addrPort(l), 0)), unix.EINPROGRESS) {
					n++
				}
				unix.Close(fd)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	others := b.listen(b.B.Addr())
	slowest := time.Duration(0)
	var pairs [][2]*net.TCPConn
	for range 200 {
		began := time.Now()
		client, server := b.connect(others)
		pairs = append(pairs, [2]*net.TCPConn{client, server})
		slowest = max(slowest, time.Since(began))
		b.exchanges(client, server)
	}
	stop()
	floods.Wait()
	t.Logf("%d connections from one port, the slowest of others took %v", n, slowest)
	if slowest > floodMost {
		t.Errorf("a connection took %v", slowest)
	}
	_ = l.Close()
	for _, c := range pairs {
		c[0].Close()
		c[1].Close()
	}
	testkind.Eventually(t, "the stacks have no more descriptors than before", func() (any, bool) {
		n := descriptors(t) - before
		return n, n <= 2*2*stockSize
	})
}

// TestFloodOfSYNs has other hosts send SYNs with the option from many ports, and never end a handshake. Others connect beside it, and none
// of them waits or fails.
func TestFloodOfSYNs(t *testing.T) {
	testkind.System(t)
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	s := b.scripted(b.A, b.B, false, 0)
	s.peer = addrPort(l)
	victims := b.victims(20)
	ctx, stop := context.WithCancel(t.Context())
	var floods sync.WaitGroup
	n := 0
	floods.Go(func() {
		var all [][]byte
		for port := range uint16(30000) {
			x := *s
			x.at = netip.AddrPortFrom(s.at.Addr(), 1024+port)
			all = append(all, x.frame(layers.TCP{SYN: true}, 5, 0, withOption(), ""))
		}
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := unix.Write(s.fd, all[i%len(all)]); err == nil {
				n++
			}
		}
	})
	slowest := time.Duration(0)
	for range 100 {
		began := time.Now()
		client, server := b.connect(l)
		slowest = max(slowest, time.Since(began))
		b.exchanges(client, server)
		for _, v := range victims {
			b.exchanges(v[0], v[1])
		}
	}
	stop()
	floods.Wait()
	t.Logf("%d SYNs, the slowest connection took %v", n, slowest)
	// What is announced to nobody who answers is bounded.
	var c bpfCount
	b.must(b.d[1].bpf.Users.Lookup(uint32(0), &c))
	spec, err := loadBpf()
	b.must(err)
	if most := shareOf(flows(spec), perUserFlows); c.All > uint64(most.root) {
		t.Errorf("%+v are announced, most %+v", c, most)
	}
}

// sockaddr returns an address for package unix.
func sockaddr(a netip.AddrPort, zone int) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: uint32(zone)}
}
