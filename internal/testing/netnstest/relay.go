// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Relay takes the first two hosts of the LAN off the switch, and carries the frames between
// their first links in user space until the end of the test, like a device on the path. edit
// gets each frame, and returns what goes on instead; first tells that the first host has sent
// it. Relay fills in the checksums of IPv4 TCP afterwards, which the hosts leave to the
// hardware. Frames larger than the MTU are lost.
func (l *LAN) Relay(t testing.TB, edit func(frame []byte, first bool) []byte) {
	t.Helper()
	ns, err := netns.GetFromName(l.fabric.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	conn, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var socks, index [2]int
	for i := range socks {
		link, err := conn.LinkByName(fmt.Sprintf("port0-%d", i+1))
		if err == nil {
			err = conn.LinkSetNoMaster(link)
		}
		if err == nil {
			index[i] = link.Attrs().Index
			err = l.fabric.Do(func() (err error) {
				socks[i], err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
				return err
			})
		}
		if err == nil {
			tv := unix.NsecToTimeval(100e6)
			err = errors.Join(
				unix.SetsockoptTimeval(socks[i], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
				unix.Bind(socks[i], &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index[i]}),
			)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(func() {
		close(done)
		wg.Wait()
		for _, fd := range socks {
			_ = unix.Close(fd)
		}
	})
	var mu sync.Mutex // of edit
	for i := range socks {
		wg.Go(func() {
			buf := make([]byte, 1<<17)
			for {
				select {
				case <-done:
					return
				default:
				}
				n, from, err := unix.Recvfrom(socks[i], buf, 0)
				ll, ok := from.(*unix.SockaddrLinklayer)
				if err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING {
					continue
				}
				mu.Lock()
				frame := edit(buf[:n:n], i == 0)
				mu.Unlock()
				sumTCP(frame)
				_ = unix.Sendto(socks[1-i], frame, 0, &unix.SockaddrLinklayer{Ifindex: index[1-i]})
			}
		})
	}
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Offsets in an Ethernet frame with IPv4.
const (
	frameIP    = 14
	frameProto = frameIP + 9
)

// TCPOf returns the TCP segment in a frame with IPv4, up to the end of the packet, or nil.
func TCPOf(frame []byte) []byte {
	if len(frame) < frameIP+40 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP || frame[frameProto] != unix.IPPROTO_TCP {
		return nil
	}
	header := int(frame[frameIP]&15) * 4
	end := frameIP + int(binary.BigEndian.Uint16(frame[frameIP+2:]))
	if end > len(frame) || frameIP+header+20 > end {
		return nil
	}
	return frame[frameIP+header : end]
}

// SetTCP returns the frame with another TCP segment. The checksum of TCP is for the caller.
func SetTCP(frame, tcp []byte) []byte {
	header := int(frame[frameIP]&15) * 4
	out := append(append([]byte(nil), frame[:frameIP+header]...), tcp...)
	ip := out[frameIP : frameIP+header]
	binary.BigEndian.PutUint16(ip[2:], uint16(header+len(tcp)))
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip))
	return out
}

// sumTCP sets the checksum of TCP in a frame that has it.
func sumTCP(frame []byte) {
	tcp := TCPOf(frame)
	if tcp == nil {
		return
	}
	binary.BigEndian.PutUint16(tcp[16:], 0)
	pseudo := append([]byte(nil), frame[frameIP+12:frameIP+20]...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^onesSum(onesSum(0, pseudo), tcp))
}

// onesSum adds the 16-bit words of b to sum, in ones' complement (RFC 1071).
func onesSum(sum uint16, b []byte) uint16 {
	total := uint32(sum)
	for ; len(b) > 1; b = b[2:] {
		total += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		total += uint32(b[0]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
