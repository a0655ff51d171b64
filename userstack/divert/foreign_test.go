// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// TestForgedByContainer has what is behind a second device of the host, as a container is, send packets with the host's own address, which the
// kernel forwards over IPv6. Those of a connection of the host leave it as little as they have to do with it, whatever their
// numbers are.
func TestForgedByContainer(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBedOf(t, netnstest.Options{Links: 2}, splice, func(*Config) {})
	b.must(b.A.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0)
	}))
	s := b.scripted(b.B, b.A, true, 3001)
	container := &scripted{wire: b.wireOf(b.B, b.A, 1), peer: s.at}
	connected := make(chan *net.TCPConn, 1)
	go func() {
		var c net.Conn
		if err := b.A.Do(func() (err error) {
			c, err = net.Dial("tcp", s.at.String())
			return err
		}); err != nil {
			b.t.Error(err)
			close(connected)
			return
		}
		connected <- c.(*net.TCPConn)
	}()
	syn := s.hears("SYN", func(t *layers.TCP) bool { return t.SYN && !t.ACK })
	container.at, container.snd, container.rcv, s.rcv = s.peer, syn.Seq+1, s.snd, syn.Seq+1
	// There is no entry for where packets go: they leave as they would have, without the option.
	container.forges(true)
	s.hears("the last one", func(t *layers.TCP) bool {
		return !t.SYN && !t.ACK && len(t.Payload) > 0 && t.Seq == container.snd+3<<30
	})
	s.segment(layers.TCP{SYN: true, ACK: true}, s.snd, s.rcv, withOption(), "")
	s.snd++
	s.wants("may I")
	s.says("you may")
	c := <-connected
	if c == nil {
		t.FailNow()
	}
	defer c.Close()
	container.snd, container.rcv = s.rcv, s.snd
	container.forges(true)
	container.snd, container.rcv = syn.Seq+1, 1001 // those of the program: what the stacks have said is not in them
	container.says("forged")
	container.segment(layers.TCP{RST: true}, container.snd, 0, nil, "")
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	s.wants("hello")
	s.says("world")
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "world" {
		t.Errorf("the program got %q, %v", got, err)
	}
}

// TestForwarded has packets of others, which the host forwards, pass it at each device. Who has an address of its own announces SMC with it,
// as the stack of a container does; who speaks with that of the host, or with one to which there is no way, does not.
func TestForwarded(t *testing.T) {
	testkind.System(t)
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBedOf(t, netnstest.Options{Links: 2}, splice, func(*Config) {})
			own, routed, elsewhere := b.A.Addr(), "10.99.0.1", "10.98.0.1"
			if v6 {
				own, routed, elsewhere = b.A.Addr6(), "fd00:99::1", "fd00:98::1"
			}
			b.must(b.A.Do(func() error {
				return errors.Join(
					os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
					os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
					os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0),
					os.WriteFile("/proc/sys/net/ipv4/conf/"+b.A.Links[1].Name+"/rp_filter", []byte("0"), 0),
				)
			}))
			b.must(b.A.Command(t.Context(), "ip", "route", "add", routed, "dev", b.A.Links[1].Name).Run())
			s := b.scripted(b.B, b.A, v6, 3001)
			for i, test := range []struct {
				from string
				want bool
			}{{routed, true}, {elsewhere, false}, {own, false}} {
				if test.from == own && !v6 {
					continue // the kernel does not forward it
				}
				container := &scripted{wire: b.wireOf(b.B, b.A, 1), at: netip.AddrPortFrom(netip.MustParseAddr(test.from), 3002), peer: s.at}
				s.peer = netip.AddrPort{}
				for flags, more := range map[string]layers.TCP{"SYN": {SYN: true}, "SYN-ACK": {SYN: true, ACK: true}} {
					seq := uint32(7 + i)
					container.segment(more, seq, 0, withOption(), "")
					if got := announced(s.hears(flags, func(t *layers.TCP) bool { return t.SYN && t.ACK == more.ACK && t.Seq == seq })); got != test.want {
						t.Errorf("%s of %s announces SMC: %v, want %v", flags, test.from, got, test.want)
					}
				}
			}
		})
	}
}
