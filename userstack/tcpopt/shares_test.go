// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/sharetest"
	"smcr/userstack/wire"
)

// stranger is a user other than that of the stack.
const stranger = 1000

// TestListenersOfOthers: whatever listening sockets a user has, or has had, those of others go
// on to announce SMC, and both ends agree about each connection.
func TestListenersOfOthers(t *testing.T) {
	for _, hold := range []bool{false, true} {
		t.Run(fmt.Sprintf("hold=%v", hold), func(t *testing.T) {
			b := newBed(t)
			victims := []int{b.listener(unix.AF_INET, "0.0.0.0", 4001, true), b.bind(b.B, unix.AF_INET, b.B.Addr(), 4002)}
			b.must(b.prog.GateListen(victims[1], stranger+1))
			b.must(unix.Listen(victims[1], 8))
			n := 8192 + 300
			if hold {
				n = maxListenersUser + 300
			}
			var held []int
			b.must(b.B.Do(func() error {
				for i := range n {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
					if err != nil {
						return err
					}
					held = append(held, fd)
					at := &unix.SockaddrInet4{Port: 10000 + i, Addr: [4]byte{127, 0, 0, 2}}
					if err := unix.Bind(fd, at); err != nil {
						return err
					}
					if err := b.prog.GateListen(fd, stranger); err != nil {
						return err
					}
					if err := unix.Listen(fd, 1); err != nil {
						return err
					}
					if !hold {
						unix.Close(fd)
						held = held[:0]
					}
				}
				return nil
			}))
			if got, want := b.listeners(), len(victims)+min(len(held), maxListenersUser); got != want {
				t.Errorf("%d listeners are registered, want %d", got, want)
			}
			for _, l := range victims {
				c := b.dial(l, true)
				b.wantPeer("client", c.client, PeerSMC)
				b.wantPeer("server", c.server, PeerSMC)
			}
			// The ones without a share answer without the option, and know it.
			if hold {
				c := b.dialLocal(held[len(held)-1])
				b.wantPeer("client", c.client, PeerNoSMC)
				b.wantPeer("server", c.server, PeerNoSMC)
			}
			for _, fd := range held {
				unix.Close(fd)
			}
			if got := b.listeners(); got != len(victims) {
				t.Errorf("%d listeners are registered at the end, want %d", got, len(victims))
			}
		})
	}
}

// TestListenersOfUsers: users who together have all listening sockets that they can leave some for
// the next user.
func TestListenersOfUsers(t *testing.T) {
	b := newBed(t)
	count := func(uid uint32) (n int) {
		var key [listenerKeySize]byte
		binary.NativeEndian.PutUint64(key[slotKeyPort-slotKey:], uint64(uid))
		var value [countSize]byte
		if b.prog.objs.listeners.Lookup(&key, &value) == nil {
			n = int(binary.NativeEndian.Uint32(value[countN:]))
		}
		return n
	}
	made := 0
	var got []int
	b.must(b.B.Do(func() error {
		got = sharetest.Users(t, 14, func(uid uint32) bool {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
			b.must(err)
			t.Cleanup(func() { unix.Close(fd) })
			made++
			b.must(unix.Bind(fd, &unix.SockaddrInet4{Port: 10000 + made, Addr: [4]byte{127, 0, 0, 2}}))
			b.must(b.prog.GateListen(fd, uid))
			n := count(uid)
			b.must(unix.Listen(fd, 1))
			return count(uid) > n
		})
		return nil
	}))
	t.Log(got)
	if got[0] != maxListenersUser || got[1] != maxListenersUser {
		t.Errorf("the first users have %v", got)
	}
}

// dialLocal connects a marked socket to a listener on an address of host B itself.
func (b *bed) dialLocal(l int) conn {
	b.Helper()
	sa, err := unix.Getsockname(l)
	b.must(err)
	fd := b.socket(b.B, unix.AF_INET)
	b.must(b.prog.MarkConnect(fd))
	b.must(connectTo(fd, sa))
	return conn{client: fd, server: b.accept(l)}
}

// TestListenersCounted: threads that begin and end listening on the same address at the same
// time leave a count that is right.
func TestListenersCounted(t *testing.T) {
	b := newBed(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := b.B.Do(func() error {
				for range 300 {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
					if err != nil {
						return err
					}
					err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
					if err == nil {
						err = unix.Bind(fd, &unix.SockaddrInet4{Port: 4001 + i%2})
					}
					if err == nil {
						err = b.prog.GateListen(fd, stranger)
					}
					if err == nil {
						err = unix.Listen(fd, 1)
					}
					unix.Close(fd)
					if err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := b.listeners(); n != 0 {
		t.Errorf("%d listeners are left", n)
	}
	it := b.prog.objs.listeners.Iterate()
	var key [listenerKeySize]byte
	var value [countSize]byte
	for it.Next(&key, &value) {
		t.Errorf("%x is left: %d", key, binary.NativeEndian.Uint32(value[countN:]))
	}
	b.must(it.Err())
}

// TestHalfOpenOfOthers: half-open connections to the listener of a user are not noted in place
// of those of others. One that cannot be noted is answered without the option, each time.
func TestHalfOpenOfOthers(t *testing.T) {
	b := newBed(t)
	b.addPhantom()
	victim := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	flooded := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4002)
	b.must(b.prog.GateListen(flooded, stranger))
	b.sysctl(b.B, "ipv4/tcp_max_syn_backlog", "65536")
	b.sysctl(b.B, "core/somaxconn", "65536")
	b.must(unix.Listen(flooded, 65536))
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	syn := slices.Concat(mss, wire.AppendTCPOption(nil))
	b.sendTCP(5000, 4001, tcpFlagSYN, 1000, 0, syn, nil)
	const flood = 6000
	for i := range flood {
		b.sendTCP(10000+i, 4002, tcpFlagSYN, 1000, 0, syn, nil)
	}
	noted := map[uint32]int{}
	b.must(netnstest.Until(ioTimeout, func() error {
		clear(noted)
		for i := range b.handshakes() {
			noted[i/(handshakeSets*handshakeWays)]++
		}
		if noted[handshakePart(stranger)] < handshakeSets*handshakeWays*9/10 {
			return fmt.Errorf("noted: %v", noted)
		}
		return nil
	}))
	if len(noted) != 2 || noted[0] != 1 {
		t.Errorf("half-open connections in the parts: %v, want one in the first", noted)
	}
	isn := map[int]uint32{}
	announced := map[int]bool{}
	for _, s := range b.segments(capture) {
		if s.syn && s.ack {
			if has := s.announces() > 0; isn[s.dst] != 0 && announced[s.dst] != has {
				t.Errorf("port %d: one SYN-ACK has the option, and another one has not", s.dst)
			}
			isn[s.dst], announced[s.dst] = s.seq, s.announces() > 0
		}
	}
	b.sendTCP(5000, 4001, tcpFlagACK, 1001, isn[5000]+1, nil, nil)
	b.wantPeer("server of another user", b.accept(victim), PeerSMC)
	// Both ends agree about each flooded one, too.
	seen := map[bool]int{}
	for i := 0; i < flood; i += 10 {
		port := 10000 + i
		if isn[port] == 0 || seen[announced[port]] >= 20 {
			continue
		}
		b.sendTCP(port, 4002, tcpFlagACK, 1001, isn[port]+1, nil, nil)
		want := PeerNoSMC
		if announced[port] {
			want = PeerSMC
		}
		b.wantPeer(fmt.Sprintf("server, announced: %v", announced[port]), b.accept(flooded), want)
		seen[announced[port]]++
	}
	if len(seen) != 2 {
		t.Errorf("connections with and without the option: %v", seen)
	}
}

// TestAnswersOfOthers: SYN-ACKs that are recorded for the listeners of others do not push out one
// for which a client may still come, and those of connections that are established go.
func TestAnswersOfOthers(t *testing.T) {
	b := newBed(t)
	b.addPhantom()
	b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	b.sysctl(b.B, "ipv4/tcp_max_syn_backlog", "65536")
	b.sysctl(b.B, "core/somaxconn", "65536")
	const users, flood = 4, 3000
	parts := map[uint32]bool{}
	for uid := uint32(stranger); len(parts) < users; uid++ {
		if parts[handshakePart(uid)] {
			continue
		}
		parts[handshakePart(uid)] = true
		l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 5000+len(parts))
		b.must(b.prog.GateListen(l, uid))
		b.must(unix.Listen(l, 65536))
	}
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	syn := slices.Concat(mss, wire.AppendTCPOption(nil))
	b.sendTCP(5000, 4001, tcpFlagSYN, 1000, 0, syn, nil)
	b.must(netnstest.Until(ioTimeout, func() error {
		if n := b.answersOf(4001); n != 1 {
			return fmt.Errorf("%d SYN-ACKs are recorded", n)
		}
		return nil
	}))
	for i := range flood {
		for user := range users {
			b.sendTCP(10000+i, 5001+user, tcpFlagSYN, 1000, 0, syn, nil)
		}
	}
	recorded := 0
	b.must(netnstest.Until(ioTimeout, func() error {
		recorded = 0
		for user := range users {
			recorded += b.answersOf(5001 + user)
		}
		if recorded < users*handshakeSets*handshakeWays/2 {
			return fmt.Errorf("%d SYN-ACKs are recorded", recorded)
		}
		return nil
	}))
	if n := b.answersOf(4001); n != 1 {
		t.Errorf("%d SYN-ACKs of another user are recorded, want 1 beside %d", n, recorded)
	}
	// A client that says that the options of its peer are its own ones is one without SMC.
	own := probe()
	for _, s := range b.segments(capture) {
		if s.syn && s.ack && s.dst == 5000 {
			b.sendTCP(5000, 4001, tcpFlagACK, 1001, s.seq+1, slices.Concat(own[:], []byte{1, 1}), nil)
			break
		}
	}
	b.must(netnstest.Until(ioTimeout, func() error {
		if n := b.answersOf(4001); n != 0 {
			return fmt.Errorf("%d SYN-ACKs of an established connection are recorded", n)
		}
		return nil
	}))
}

// answersOf returns the number of recorded SYN-ACKs of a listening port.
func (b *bed) answersOf(port int) (n int) {
	b.Helper()
	b.must(netnstest.Until(ioTimeout, func() error {
		n = 0
		it, key, value := b.prog.objs.answers.Iterate(), [answerSize]byte{}, uint64(0)
		for it.Next(&key, &value) {
			if binary.NativeEndian.Uint64(key[slotKeyPort-slotKey:]) == uint64(port) {
				n++
			}
		}
		return it.Err() // if others change the map meanwhile
	}))
	return n
}
