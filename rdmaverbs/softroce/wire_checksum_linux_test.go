// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"net"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// TestWireNoChecksum: Linux soft-RoCE leaves the UDP checksum out over IPv6
// too, where a socket must be told to take such datagrams.
func TestWireNoChecksum(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	b := openEnd(t, pair.B, "eth0")
	src, dst := pair.A.Links[0].IPv6, pair.B.Links[0].IPv6
	var conn *net.UDPConn
	if err := pair.A.Do(func() (err error) {
		conn, err = net.ListenUDP("udp6", &net.UDPAddr{IP: src.AsSlice()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, 1)
	}); err != nil || optErr != nil {
		t.Fatal(err, optErr)
	}
	data := flat(testPacket(header.WriteOnly, 9, 30))
	n := len(data) + header.ICRCLen
	ip, udp := make(header.IPv6, header.IPv6Len), make(header.UDP, header.UDPLen)
	ip.Encode(&header.IPv6Fields{PayloadLen: uint16(header.UDPLen + n), Src: src.As16(), Dst: dst.As16()})
	udp.Encode(&header.UDPFields{
		SrcPort: uint16(conn.LocalAddr().(*net.UDPAddr).Port), DstPort: header.UDPPortRoCE, Len: uint16(header.UDPLen + n),
	})
	var k header.Checker
	crc := k.V2IPv6(ip, udp, data).Add(data[header.BTHLen:])
	data = append(data, 0, 0, 0, 0)
	crc.Put(data[len(data)-header.ICRCLen:])

	before := b.counters()
	if _, err := conn.WriteTo(data, &net.UDPAddr{IP: dst.AsSlice(), Port: header.UDPPortRoCE}); err != nil {
		t.Fatal(err)
	}
	expectOne(t, b, before, func(s *wireStats) *uint64 { return &s.RxPackets })
}
