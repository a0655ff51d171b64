// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"smcr/rdmaverbs/softroce/header"
	"smcr/userstack/wire"
)

const (
	ipHeader, udpHeader = 20, 8
	// replayTrain packets are sent without a pause.
	replayTrain = 50
)

// replay sends RoCE packets to queue pair qpn of host to again and again, in the name of from and
// from the UDP port of its stack, with the n numbers before psn. Each is a request to end a link or
// the link group. It needs the right to use raw sockets.
func replay(from, to netip.Addr, port uint16, qpn, psn uint32, n int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var payloads [][]byte
	for _, d := range []wire.DeleteLink{{Layout: wire.LLCV2, All: true}, {Layout: wire.LLCV2, LinkNum: 1}, {All: true}} {
		b, err := d.AppendBinary(nil)
		if err != nil {
			return err
		}
		payloads = append(payloads, b)
	}
	var pre header.Prefix
	src, dst := from.As16(), to.As16()
	pre.UseIPv4(&src, &dst, port)
	peer := &unix.SockaddrInet4{Addr: to.As4()}
	fmt.Println("replaying")
	for sent := 0; ; sent++ {
		payload := payloads[sent%len(payloads)]
		size := header.BTHLen + len(payload) + header.ICRCLen
		b := make([]byte, ipHeader+udpHeader+header.BTHLen, ipHeader+udpHeader+size)
		id := uint16(sent%0xfffe + 1)
		be := binary.BigEndian
		b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
		be.PutUint16(b[2:], uint16(ipHeader+udpHeader+size))
		be.PutUint16(b[4:], id)
		be.PutUint16(b[6:], 0x4000) // do not fragment
		copy(b[12:], from.AsSlice())
		copy(b[16:], to.AsSlice())
		be.PutUint16(b[20:], port)
		be.PutUint16(b[22:], header.UDPPortRoCE)
		be.PutUint16(b[24:], uint16(udpHeader+size))
		bth := b[ipHeader+udpHeader:]
		header.BTH(bth).Encode(&header.BTHFields{
			Opcode: header.SendOnly, PKey: header.DefaultPKey, DestQP: qpn, AckReq: true, PSN: (psn - 1 - uint32(sent%n)) & header.PSNMask,
		})
		crc := pre.StartID(size, id).AddBTH(bth).Add(payload)
		if err := unix.Sendto(fd, crc.Append(append(b, payload...)), 0, peer); err != nil && err != unix.ENOBUFS { //nolint:errorlint // of a system call
			return fmt.Errorf("send: %w", err)
		}
		if sent%replayTrain == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// replayArgs parses the arguments of replay.
func replayArgs(args []string) error {
	from, to, err := twoAddrs(args)
	if err != nil {
		return err
	}
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(args[2+i], 0, 24); err != nil {
			return err
		}
	}
	return replay(from, to, uint16(numbers[0]), uint32(numbers[1]), uint32(numbers[2]), count(args[5]))
}
