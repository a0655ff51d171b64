// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

const (
	// own is an address of host A that host B may have too.
	own  = "10.99.0.1"
	own6 = "fd99::1"
	port = 4001
)

// run runs a command on a host. It skips the test if the machine does not have what it needs.
func (b *bed) run(h *netnstest.Host, name string, args ...string) {
	b.Helper()
	netnstest.Require(b, name)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := h.Output(ctx, name, args...); err != nil {
		b.Skipf("%s %q: %v: %s", name, args, err, out)
	}
}

// ownAddress gives hosts the addresses own and own6.
func (b *bed) ownAddress(hosts ...*netnstest.Host) {
	b.Helper()
	for _, h := range hosts {
		b.run(h, "ip", "addr", "replace", own+"/32", "dev", "lo")
		b.run(h, "ip", "addr", "replace", own6+"/128", "dev", "lo", "nodad")
	}
}

// wayBack makes host B reach the addresses own and own6 of host A.
func (b *bed) wayBack() {
	b.Helper()
	b.run(b.B, "ip", "route", "replace", own+"/32", "via", b.A.Addr())
	b.run(b.B, "ip", "route", "replace", own6+"/128", "via", b.A.Addr6())
}

// nat adds a rule to a chain for NAT of host A.
func (b *bed) nat(hook, priority, rule string) {
	b.Helper()
	b.run(b.A, "nft", "add table inet t; add chain inet t "+hook+" { type nat hook "+hook+" priority "+priority+"; }; add rule inet t "+hook+" "+rule)
}

// gatedListener returns a listening socket of a host, with a mark and a gate.
func (b *bed) gatedListener(h *netnstest.Host, family int, addr string, port int) int {
	b.Helper()
	l := b.bind(h, family, addr, port)
	b.must(b.prog.GateListen(l, 0))
	b.must(unix.Listen(l, 8))
	return l
}

// openHere calls OpenHere on a socket of host A, which must have a gate.
func (b *bed) openHere(fd int) error {
	b.Helper()
	g, err := b.prog.Gate(fd)
	b.must(err)
	if g == nil {
		b.Fatal("the socket has no gate: the test shows nothing")
	}
	return g.OpenHere(fd)
}

// TestOpenHere: the gates at both ends of a connection within a network namespace open, whatever
// addresses it has.
func TestOpenHere(t *testing.T) {
	for name, at := range map[string]struct {
		listens, connects int
		any, to           string
	}{
		"IPv4":       {unix.AF_INET, unix.AF_INET, "0.0.0.0", own},
		"IPv6":       {unix.AF_INET6, unix.AF_INET6, "::", own6},
		"loopback":   {unix.AF_INET, unix.AF_INET, "127.0.0.1", "127.0.0.1"},
		"IPv4 by ::": {unix.AF_INET6, unix.AF_INET, "::", own},
		"mapped":     {unix.AF_INET, unix.AF_INET6, "0.0.0.0", "::ffff:" + own},
		"both":       {unix.AF_INET6, unix.AF_INET6, "::", "::ffff:" + own},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.ownAddress(b.A)
			l := b.gatedListener(b.A, at.listens, at.any, port)
			fd := b.socket(b.A, at.connects)
			b.must(b.prog.GateConnect(fd))
			c := b.connect(fd, l, at.connects, at.to)
			for who, fd := range map[string]int{"client": c.client, "server": c.server} {
				if err := b.openHere(fd); err != nil {
					t.Errorf("the %s: %v", who, err)
				}
			}
			b.exchange(c)
			b.noAnswers()
		})
	}
}

// noAnswers wants that no handshake is remembered.
func (b *bed) noAnswers() {
	b.Helper()
	it, key, value, left := b.prog.objs.answers.Iterate(), [answerSize]byte{}, uint64(0), 0
	for it.Next(&key, &value) {
		left++
	}
	if left != 0 || it.Err() != nil {
		b.Errorf("%d answers are left, %v", left, it.Err())
	}
}

// TestNotHere: no gate opens if packets to an address of the host have gone elsewhere, or to
// another socket than the addresses tell, and none on a connection with another host.
func TestNotHere(t *testing.T) {
	for name, lead := range map[string]func(b *bed) (to string, l int){
		"another host": func(b *bed) (string, int) {
			return b.B.Addr(), b.gatedListener(b.B, unix.AF_INET, "0.0.0.0", port)
		},
		"DNAT to another host": func(b *bed) (string, int) {
			b.nat("output", "-100", "ip daddr "+own+" tcp dport 4001 dnat ip to "+b.B.Addr())
			return own, b.gatedListener(b.B, unix.AF_INET, "0.0.0.0", port)
		},
		"DNAT of IPv6": func(b *bed) (string, int) {
			b.nat("output", "-100", "ip6 daddr "+own6+" tcp dport 4001 dnat ip6 to "+b.B.Addr6())
			return own6, b.gatedListener(b.B, unix.AF_INET6, "::", port)
		},
		"DNAT and SNAT": func(b *bed) (string, int) {
			b.nat("output", "-100", "ip daddr "+own+" tcp dport 4001 dnat ip to "+b.B.Addr())
			b.nat("postrouting", "100", "tcp dport 4001 masquerade")
			return own, b.gatedListener(b.B, unix.AF_INET, "0.0.0.0", port)
		},
		"DNAT to another port": func(b *bed) (string, int) {
			b.nat("output", "-100", "ip daddr "+own+" tcp dport 4001 dnat ip to "+own+":4002")
			return own, b.gatedListener(b.A, unix.AF_INET, "0.0.0.0", 4002)
		},
		"redirect": func(b *bed) (string, int) {
			b.nat("output", "-100", "ip daddr "+own+" tcp dport 4001 redirect to :4002")
			return own, b.gatedListener(b.A, unix.AF_INET, "0.0.0.0", 4002)
		},
		"SNAT": func(b *bed) (string, int) {
			b.nat("postrouting", "100", "ip daddr "+own+" tcp dport 4001 snat ip to "+b.A.Addr())
			return own, b.gatedListener(b.A, unix.AF_INET, "0.0.0.0", port)
		},
		"a policy of routes": func(b *bed) (string, int) {
			b.run(b.B, "ip", "route", "del", own+"/32")
			b.ownAddress(b.B)
			b.run(b.A, "ip", "rule", "add", "pref", "100", "lookup", "local")
			b.run(b.A, "ip", "rule", "add", "pref", "50", "to", own, "iif", "lo", "lookup", "77")
			b.run(b.A, "ip", "rule", "del", "pref", "0")
			b.run(b.A, "ip", "route", "add", own, "via", b.B.Addr(), "dev", b.A.Links[0].Name, "table", "77")
			return own, b.gatedListener(b.B, unix.AF_INET, "0.0.0.0", port)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.ownAddress(b.A)
			b.wayBack()
			to, l := lead(b)
			family := unix.AF_INET
			if to == own6 {
				family = unix.AF_INET6
			}
			fd := b.socket(b.A, family)
			b.must(b.prog.GateConnect(fd))
			b.notHere(fd, l, family, to)
		})
	}
}

// notHere connects fd and wants that its gate and that of the server stay closed.
func (b *bed) notHere(fd, l, family int, to string) {
	b.Helper()
	b.must(connectTo(fd, sockaddr(family, addrPort(to, port))))
	server := b.accept(l)
	b.wantPeer("client", fd, PeerSMC)
	for who, fd := range map[string]int{"client": fd, "server": server} {
		if err := b.openHere(fd); !errors.Is(err, ErrNotHere) {
			b.Errorf("the %s: %v, want ErrNotHere", who, err)
		}
	}
	if _, err := unix.SendmsgN(fd, []byte(foreign), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		b.Fatal(err)
	}
	b.noAnswers()
	time.Sleep(quiet)
	buf := make([]byte, 100)
	if n, _, err := unix.Recvfrom(server, buf, unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		b.Errorf("the server got %q, %v", buf[:max(0, n)], err)
	}
}

// TestNotHereStale: a socket of the namespace has the right addresses, but is the end of an older
// connection, whose other end is gone. The new one leads to another host.
func TestNotHereStale(t *testing.T) {
	b := newBed(t)
	b.ownAddress(b.A)
	b.wayBack()
	l := b.gatedListener(b.A, unix.AF_INET, "0.0.0.0", port)
	from := func() int {
		fd := b.bind(b.A, unix.AF_INET, own, 4777)
		b.must(b.prog.GateConnect(fd))
		return fd
	}
	old := from()
	stale := b.connect(old, l, unix.AF_INET, own)
	b.run(b.A, "nft", "add table inet cut; add chain inet cut output { type filter hook output priority 0; tcp sport 4777 drop; }")
	b.must(unix.SetsockoptLinger(old, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	b.close(old) // the reset is lost
	b.run(b.A, "nft", "delete table inet cut")
	b.nat("output", "-100", "ip daddr "+own+" tcp dport 4001 dnat ip to "+b.B.Addr())
	b.notHere(from(), b.gatedListener(b.B, unix.AF_INET, "0.0.0.0", port), unix.AF_INET, own)
	if info, err := unix.GetsockoptTCPInfo(stale.server, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State != unix.BPF_TCP_ESTABLISHED {
		t.Errorf("the old socket is not established any more: the test shows nothing (%v)", err)
	}
}

func addrPort(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}
