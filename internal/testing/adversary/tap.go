// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
)

// Seen is a packet of RoCE version 2 over IPv4 on the wire.
type Seen struct {
	From, To netip.AddrPort
	header.Transport
}

// Tap reads the wire of a host, and returns the first packet for which want returns true.
// It stands for what an attacker has learnt in some other way. It needs CAP_NET_RAW. After
// the wait, the error is os.ErrDeadlineExceeded.
func Tap(ctx context.Context, h *netnstest.Host, wait time.Duration, want func(*Seen) bool) (Seen, error) {
	var fd int
	if err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_ALL)))
		return err
	}); err != nil {
		return Seen{}, fmt.Errorf("adversary: packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "packet socket")
	defer f.Close()
	if err := f.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return Seen{}, fmt.Errorf("adversary: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	b := make([]byte, 128<<10)
	for {
		n, err := f.Read(b)
		if err != nil {
			return Seen{}, errors.Join(fmt.Errorf("adversary: no such packet: %w", err), ctx.Err())
		}
		if s, ok := parseSeen(b[:n]); ok && want(&s) {
			return s, nil
		}
	}
}

// parseSeen parses an IPv4 packet. Of several packets that the kernel sends as one, it
// sees the first one, with the payload of all.
func parseSeen(b []byte) (s Seen, ok bool) {
	if len(b) < header.IPv4Len+header.UDPLen+header.BTHLen+header.ICRCLen || b[0] != 0x45 {
		return s, false
	}
	ip, udp := header.IPv4(b), header.UDP(b[header.IPv4Len:])
	if ip.Protocol() != header.ProtocolUDP || udp.DstPort() != header.UDPPortRoCE {
		return s, false
	}
	s.From, s.To = netip.AddrPortFrom(ip.Src(), udp.SrcPort()), netip.AddrPortFrom(ip.Dst(), udp.DstPort())
	var err error
	s.Transport, err = header.ParseTransport(b[header.IPv4Len+header.UDPLen : len(b)-header.ICRCLen])
	return s, err == nil || s.BTH != nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
