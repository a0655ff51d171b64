// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// TestForged has SYNs that announce SMC, which the stack has not announced: the device takes the option away.
func TestForged(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	capture := b.B.StartCapture(t, netnstest.CaptureOptions{Filter: "tcp"})
	options := [][]layers.TCPOption{
		{{OptionType: 254, OptionLength: 6, OptionData: []byte{0xe2, 0xd4, 0xc3, 0xd9}}},
		{{OptionType: 1}, {OptionType: 254, OptionLength: 6, OptionData: []byte{0xe2, 0xd4, 0xc3, 0xd9}}},
		{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 0xb4}}, {OptionType: 1}, {OptionType: 1}, {OptionType: 254, OptionLength: 6, OptionData: []byte{0xe2, 0xd4, 0xc3, 0xd9}}},
		nil, // an honest one, by a raw socket: it gets none
	}
	for _, hosts := range [][2]string{{b.A.Addr(), b.B.Addr()}, {b.A.Addr6(), b.B.Addr6()}} {
		family, level, included := unix.AF_INET, unix.IPPROTO_IP, unix.IP_HDRINCL
		if strings.Contains(hosts[0], ":") {
			family, level, included = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL
		}
		to := sockaddr(netip.AddrPortFrom(netip.MustParseAddr(hosts[1]), 0), 0)
		b.must(b.A.Do(func() error {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, level, included, 1); err != nil {
				return err
			}
			for i, o := range options {
				f, err := parseFrame(packet(t, hosts[0], hosts[1], layers.TCP{SrcPort: layers.TCPPort(3000 + i), DstPort: 9, SYN: true, Window: 1000, Options: o}, ""))
				if err != nil {
					return err
				}
				if err := unix.Sendto(fd, f.b[ethLen:], 0, to); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	// Behind them comes a connection: then they have arrived.
	b.must(b.A.Do(func() error {
		for _, to := range []string{b.B.Addr(), b.B.Addr6()} {
			if _, err := net.Dial("tcp", net.JoinHostPort(to, "9")); !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("dial: %w", err)
			}
		}
		return nil
	}))
	if _, err := capture.Stop(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tcpdump", "-nvvr", capture.File, "src portrange 3000-3009").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "Flags [S]"); n != 2*len(options) {
		t.Errorf("%d packets have arrived, want %d", n, 2*len(options))
	}
	if s := string(out); strings.Contains(s, "e2d4") || strings.Contains(s, "incorrect") || !strings.Contains(s, "nop,nop,nop,nop,nop,nop") {
		t.Errorf("on the wire:\n%s", s)
	}
	b.gone()
}
