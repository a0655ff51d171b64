// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/rdmaverbs/softroce/header"
	"smcr/userstack/wire"
)

const (
	// sweepTrain is how many packets are sent with one system call.
	sweepTrain = 64
	// sweepRate is the largest number of packets in a second, so that the receiver gets
	// nearly all of them.
	sweepRate = 400_000
)

// sweep sends n RoCE packets with consecutive PSNs, from psn on, to queue pair qpn of
// host to, in the name of from, with an ordinary UDP socket. Each packet is a request to
// end the link group. It first tries to get a UDP port that another process of this host
// has.
func sweep(from, to netip.Addr, qpn, psn uint32, n int) error {
	if err := takePorts(); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
		return err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	port := name.(*unix.SockaddrInet4).Port
	payload, err := wire.DeleteLink{Layout: wire.LLCV2, All: true}.AppendBinary(nil)
	if err != nil {
		return err
	}
	size := header.BTHLen + len(payload) + header.ICRCLen
	segment := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&segment[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(segment[unix.CmsgLen(0):], uint16(size))

	var pre header.Prefix
	src, dst := from.As16(), to.As16()
	pre.UseIPv4(&src, &dst, uint16(port))
	peer := &unix.SockaddrInet4{Port: header.UDPPortRoCE, Addr: to.As4()}
	start := time.Now()
	buf := make([]byte, 0, sweepTrain*size)
	for sent := 0; sent < n; {
		train := min(sweepTrain, n-sent)
		buf = buf[:0]
		for i := range train {
			at := len(buf)
			buf = append(buf, make([]byte, header.BTHLen)...)
			header.BTH(buf[at:]).Encode(&header.BTHFields{
				Opcode: header.SendOnly, PKey: header.DefaultPKey, DestQP: qpn, AckReq: true, PSN: (psn + uint32(sent+i)) & header.PSNMask,
			})
			// The kernel numbers the segments of a message from 0.
			crc := pre.StartID(size, uint16(i)).AddBTH(buf[at:]).Add(payload)
			buf = crc.Append(append(buf, payload...))
		}
		err := unix.Sendmsg(fd, buf, segment, peer, 0)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send: %w", err)
		}
		sent += train
		if ahead := time.Duration(sent)*time.Second/sweepRate - time.Since(start); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
	}
	fmt.Printf("swept %d PSNs from UDP port %d\n", n, port)
	return nil
}

// takePorts tries to bind a socket to each UDP port that a process of this host has. It
// says "took" and the port for each success.
func takePorts() error {
	netdevs, err := net.Interfaces()
	if err != nil {
		return err
	}
	ways := []func(fd int) error{
		func(int) error { return nil },
		func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) },
		func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) },
	}
	for _, i := range netdevs {
		ways = append(ways, func(fd int) error { return unix.BindToDevice(fd, i.Name) })
	}
	ports, err := udpPorts()
	if err != nil {
		return err
	}
	for _, port := range ports {
		for i, way := range ways {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if way(fd) == nil && unix.Bind(fd, &unix.SockaddrInet4{Port: port}) == nil {
				fmt.Printf("took UDP port %d by way %d\n", port, i)
			}
			unix.Close(fd)
		}
	}
	fmt.Printf("tried %d ports\n", len(ports))
	return nil
}

// udpPorts returns the UDP ports of this host from which something can be sent: all but
// that of RoCE, which each netdev can have.
func udpPorts() (ports []int, err error) {
	f, err := os.Open("/proc/net/udp")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the heading
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		_, hex, ok := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if !ok || err != nil {
			return nil, fmt.Errorf("/proc/net/udp: %q", lines.Text())
		}
		if port != header.UDPPortRoCE {
			ports = append(ports, int(port))
		}
	}
	return ports, lines.Err()
}

// twoAddrs parses the first two arguments, FROM and TO.
func twoAddrs(args []string) (from, to netip.Addr, err error) {
	if from, err = netip.ParseAddr(args[0]); err == nil {
		to, err = netip.ParseAddr(args[1])
	}
	return from, to, err
}

// sweepArgs parses the arguments of sweep.
func sweepArgs(args []string) error {
	from, to, err := twoAddrs(args)
	if err != nil {
		return err
	}
	qpn, err := strconv.ParseUint(args[2], 0, 24)
	if err != nil {
		return err
	}
	psn, err := strconv.ParseUint(args[3], 0, 24)
	if err != nil {
		return err
	}
	return sweep(from, to, uint32(qpn), uint32(psn), count(args[4]))
}
