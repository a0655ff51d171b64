// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// udpPorts are the UDP sockets for RoCE version 2 on one netdev, one for
// each version of IP, on port 4791. They are bound to the netdev, so that
// several netdevs can each have theirs, and do not share the port: with
// SO_REUSEPORT the kernel would deal packets out among the sockets, and with
// SO_REUSEADDR give all to the last one.
//
// All packets leave from port 4791, whatever the path's source port says: it
// only spreads flows over parallel links, and a socket for each would have
// to be made in the right network namespace, where only openWire surely is.
type udpPorts struct {
	netdev string
	index  int
	sock   [2]*socket // IPv4, IPv6; nil if the host has no IPv6
	noGSO  atomic.Bool
	ids    *header.IDSolver
}

const (
	udp4 = 0
	udp6 = 1

	rcvBuf = 16 << 20 // bytes of packets that wait for us
)

// openUDPPorts opens the sockets in the calling thread's network namespace.
// The error wraps EADDRINUSE if another program has the port.
func openUDPPorts(i *netdevInfo) (*udpPorts, error) {
	u := &udpPorts{netdev: i.Name, index: i.Index, ids: header.NewIDSolver()}
	for family := range u.sock {
		sock, err := u.open(family)
		if errors.Is(err, unix.EAFNOSUPPORT) && family == udp6 {
			continue
		}
		if err == nil {
			u.sock[family] = sock
			err = setReceive(family, sock.fd)
		}
		if err != nil {
			u.close()
			return nil, err
		}
	}
	return u, nil
}

func (u *udpPorts) open(family int) (_ *socket, err error) {
	af, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: header.UDPPortRoCE})
	opts := []sockopt{{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}}
	if family == udp6 {
		af, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: header.UDPPortRoCE}
		opts = []sockopt{
			{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.SOL_IPV6, unix.IPV6_DONTFRAG, 1},
		}
	}
	fd, err := unix.Socket(af, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("softroce: UDP socket: %w", err)
	}
	s, err := newSocket(fd, "UDP socket")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := setsockopts(fd, opts); err != nil {
		return nil, err
	}
	if err := unix.BindToDevice(fd, u.netdev); err != nil {
		return nil, fmt.Errorf("softroce: bind UDP socket to netdev %s: %w", u.netdev, err)
	}
	setSendBuffer(fd)
	if err := unix.Bind(fd, sa); err != nil {
		return nil, fmt.Errorf("softroce: bind UDP port %d: %w", header.UDPPortRoCE, err)
	}
	return s, nil
}

type sockopt struct{ level, name, value int }

func setsockopts(fd int, opts []sockopt) error {
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("softroce: set UDP socket option %d/%d: %w", o.level, o.name, err)
		}
	}
	return nil
}

// setReceive prepares a socket for receive: addresses and batches.
func setReceive(family, fd int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rcvBuf) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, rcvBuf)
	}
	opts := []sockopt{{unix.SOL_UDP, unix.UDP_GRO, 1}, {unix.SOL_IP, unix.IP_PKTINFO, 1}}
	if family == udp6 {
		opts[1] = sockopt{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1}
	}
	return setsockopts(fd, opts)
}

func (u *udpPorts) close() {
	for _, s := range u.sock {
		if s != nil {
			s.close()
		}
	}
}

// overruns returns the datagrams that the receive buffers had no room for.
func (u *udpPorts) overruns() (n uint64) {
	for _, s := range u.sock {
		if s == nil {
			continue
		}
		const skMeminfoDrops = 8 // linux/sock_diag.h, SK_MEMINFO_DROPS
		var info [9]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 && int(size) == len(info)*4 {
			n += uint64(info[skMeminfoDrops])
		}
	}
	return n
}
