// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// wire sends any frames from the cable of a host to the other one, past all filters of that host, as another host of the LAN can, and sees
// what comes there.
type wire struct {
	t        *testing.T
	fd       int
	from, to net.HardwareAddr
}

func swappedProto(p int) int { return int(swapped(uint16(p))) }

// wireOf returns one of the wires of a host to another one.
func (b *bed) wireOf(h, other *netnstest.Host, link int) *wire {
	b.t.Helper()
	w := &wire{t: b.t, fd: -1}
	mac := func(h *netnstest.Host) (mac net.HardwareAddr) {
		b.must(h.Do(func() error {
			i, err := net.InterfaceByName(h.Links[link].Name)
			if err == nil {
				mac = i.HardwareAddr
			}
			return err
		}))
		return mac
	}
	w.from, w.to = mac(h), mac(other)
	index := b.index(h, h.Links[link].Name)
	b.must(h.Do(func() (err error) {
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, swappedProto(unix.ETH_P_ALL)); err != nil {
			return err
		}
		if err = unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return err
		}
		if err = unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(testkind.Patience / time.Second)}); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: uint16(swappedProto(unix.ETH_P_ALL)), Ifindex: index})
	}))
	b.t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// scripted is a TCP endpoint on a wire, with an address that no kernel has.
type scripted struct {
	*wire
	at, peer netip.AddrPort
	snd, rcv uint32 // the next sequence numbers
	// clock is the timestamp of what it sends, and echo that of what it has heard. 0: it has none.
	clock, echo uint32
}

// scripted returns an endpoint on the wire of h, with which other can talk.
func (b *bed) scripted(h, other *netnstest.Host, v6 bool, port uint16) *scripted {
	b.t.Helper()
	base := h.Addr()
	if v6 {
		base = h.Addr6()
	}
	a := netip.MustParseAddr(base).AsSlice()
	a[len(a)-1] = 201
	at, _ := netip.AddrFromSlice(a)
	s := &scripted{wire: b.wireOf(h, other, 0), at: netip.AddrPortFrom(at, port), snd: 1000}
	b.must(other.Command(b.t.Context(), "ip", "neigh", "replace", at.String(), "lladdr", s.from.String(), "nud", "permanent", "dev", other.Links[0].Name).Run())
	return s
}

// What the endpoint says of itself.
const (
	mss     = 1460
	windows = 60000
)

var smcOption = layers.TCPOption{OptionType: 254, OptionLength: 6, OptionData: []byte{0xe2, 0xd4, 0xc3, 0xd9}}

func withOption() []layers.TCPOption {
	return []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{mss >> 8, mss & 0xff}}, smcOption}
}

// frame returns a segment with any numbers. What flags has is set in it.
func (s *scripted) frame(flags layers.TCP, seq, ack uint32, options []layers.TCPOption, payload string) []byte {
	s.t.Helper()
	tcp := flags
	if s.clock != 0 {
		stamps := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, s.clock), s.echo)
		options = append(slices.Clone(options), layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: stamps})
	}
	tcp.SrcPort, tcp.DstPort, tcp.Seq, tcp.Ack, tcp.Window, tcp.Options = layers.TCPPort(s.at.Port()), layers.TCPPort(s.peer.Port()), seq, ack, windows, options
	b := packet(s.t, s.at.Addr().String(), s.peer.Addr().String(), tcp, payload)
	copy(b[0:], s.to)
	copy(b[6:], s.from)
	return b
}

// segment sends one.
func (s *scripted) segment(flags layers.TCP, seq, ack uint32, options []layers.TCPOption, payload string) {
	s.t.Helper()
	if _, err := unix.Write(s.fd, s.frame(flags, seq, ack, options, payload)); err != nil {
		s.t.Fatal(err)
	}
}

// addrPort returns where a listener listens.
func addrPort(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

// says sends what is next of the stream.
func (s *scripted) says(payload string) {
	s.segment(layers.TCP{ACK: true, PSH: true}, s.snd, s.rcv, nil, payload)
	s.snd += uint32(len(payload))
}

// hears waits for a segment for the endpoint. It returns nil at the end of the patience.
func (s *scripted) hears(what string, is func(*layers.TCP) bool) *layers.TCP {
	s.t.Helper()
	buf := make([]byte, 1<<17)
	for end := time.Now().Add(testkind.Patience); time.Now().Before(end); {
		var n int
		var from unix.Sockaddr
		// A socket with a time limit also returns EINTR after a signal of the runtime (signal(7)).
		if retry.Interrupted(func() (err error) { n, from, err = unix.Recvfrom(s.fd, buf, 0); return err }) != nil {
			break
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		p := gopacket.NewPacket(bytes.Clone(buf[:n]), layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok || p.NetworkLayer() == nil {
			continue
		}
		src, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
		dst, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Dst().Raw())
		if dst != s.at.Addr() || uint16(tcp.DstPort) != s.at.Port() || s.peer.IsValid() && (src != s.peer.Addr() || uint16(tcp.SrcPort) != s.peer.Port()) {
			continue
		}
		if is(tcp) {
			s.peer = netip.AddrPortFrom(src, uint16(tcp.SrcPort))
			for _, o := range tcp.Options {
				if o.OptionType == layers.TCPOptionKindTimestamps {
					s.echo = binary.BigEndian.Uint32(o.OptionData)
				}
			}
			return tcp
		}
	}
	s.t.Fatalf("the wire has not seen %s", what)
	return nil
}

// wants waits for bytes that are next of the peer's stream, and acknowledges them.
func (s *scripted) wants(payload string) {
	s.t.Helper()
	for got := ""; got != payload; {
		tcp := s.hears("more than "+got+" of "+payload, func(t *layers.TCP) bool { return t.Seq == s.rcv && (t.RST || len(t.Payload) > 0) })
		if tcp.RST {
			s.t.Fatalf("reset, in place of %q", payload[len(got):])
		}
		got += string(tcp.Payload)
		s.rcv += uint32(len(tcp.Payload))
		s.segment(layers.TCP{ACK: true}, s.snd, s.rcv, nil, "")
		if len(got) > len(payload) || got != payload[:len(got)] {
			s.t.Fatalf("got %q, want %q", got, payload)
		}
	}
}

func announced(t *layers.TCP) bool {
	for _, o := range t.Options {
		if o.OptionType == smcOption.OptionType && bytes.Equal(o.OptionData, smcOption.OptionData) {
			return true
		}
	}
	return false
}
