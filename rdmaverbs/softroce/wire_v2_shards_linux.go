// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"

	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// openShards opens the sockets of all shards except the first, whose socket is
// already open. They share its port, and the kernel gives each packet to the
// socket of the shard that has the queue pair. Only a process of the same user
// that sets SO_REUSEPORT could also bind to the port. Another stack does not
// set it, so its bind fails.
func (u *udpPorts) openShards(family, shards int) error {
	if shards == 1 {
		return nil
	}
	first := u.sock[family].fd
	// Only after bind, which must fail if the port is in use.
	if err := unix.SetsockoptInt(first, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("softroce: share UDP port: %w", err)
	}
	for range shards - 1 {
		fd, err := openUDP(family, u.netdev, header.UDPPortRoCE, sockopt{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
		if err != nil {
			return err
		}
		s, err := newSocket(fd, "UDP socket")
		if err != nil {
			return err
		}
		u.more[family] = append(u.more[family], s)
		if err := setReceive(family, fd); err != nil {
			return err
		}
	}
	return steer(first, shards)
}

// steer makes the kernel choose the socket of a shard by the queue pair number
// modulo shards. The sockets share the port of fd and count in the order in
// which they were bound. A packet that is too short for a queue pair number
// goes to the first.
func steer(fd, shards int) error {
	const lastOfQPN = 7 // offset of the last byte of DestQP in the BTH
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: lastOfQPN - 3},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: psnMask},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(shards)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
	if err != nil {
		return fmt.Errorf("softroce: choose among the sockets of a UDP port: %w", err)
	}
	return nil
}
