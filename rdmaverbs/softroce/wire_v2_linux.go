// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// udpPorts are the UDP sockets for RoCE version 2 on one netdev: for each IP
// version one receiving socket on port 4791, and some sending sockets on
// dynamic ports.
//
// The receiving sockets are bound to the netdev, so that each netdev can have port
// 4791. They do not share the port with other programs: with SO_REUSEPORT the kernel
// would spread packets over the sockets, and with SO_REUSEADDR it would give all
// packets to the last one. Shards share it, see openShards.
type udpPorts struct {
	netdev string
	sock   [2]*socket   // IPv4, IPv6; nil if the host has no IPv6
	more   [2][]*socket // sockets of the other shards
	tx     sourcePorts
	noGSO  atomic.Bool
	ids    *header.IDSolver

	hand sync.Mutex // held while the sockets change their process; before netWire.mu
	tap  *tap       // nil unless another process has the receiving sockets
}

const (
	udp4 = 0
	udp6 = 1

	rcvBuf = 16 << 20 // bytes of packets in the receive buffer
)

// openUDPPorts opens the sockets in the calling thread's network namespace, one
// to receive for each shard, or takes those of another process from from.
// The error wraps EADDRINUSE if another program has the port.
func openUDPPorts(i *netdevInfo, shards int, from *inheritance) (*udpPorts, error) {
	u := &udpPorts{netdev: i.Name, ids: header.NewIDSolver()}
	for family := range u.sock {
		err := u.openFamily(family, shards, from.take(i.Index, family))
		if errors.Is(err, unix.EAFNOSUPPORT) && family == udp6 {
			continue
		}
		if err != nil {
			u.close()
			return nil, err
		}
	}
	return u, nil
}

func (u *udpPorts) openFamily(family, shards int, inherited []int) error {
	if len(inherited) > 0 {
		if err := u.inherit(family, inherited); err != nil {
			return err
		}
		return u.tx.open(family)
	}
	fd, err := openUDP(family, u.netdev, header.UDPPortRoCE)
	if err != nil {
		return err
	}
	if u.sock[family], err = newSocket(fd, "UDP socket"); err != nil {
		return err
	}
	if err := setReceive(family, fd); err != nil {
		return err
	}
	if err := u.openShards(family, shards); err != nil {
		return err
	}
	return u.tx.open(family)
}

// openUDP opens a socket bound to a netdev, or to none if the name is empty, and to
// port. For port 0 the kernel chooses one.
func openUDP(family int, netdev string, port int, more ...sockopt) (int, error) {
	af, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: port})
	opts := []sockopt{{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}}
	if family == udp6 {
		af, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: port}
		opts = []sockopt{
			{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.SOL_IPV6, unix.IPV6_DONTFRAG, 1},
		}
	}
	fd, err := unix.Socket(af, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("softroce: UDP socket: %w", err)
	}
	if err = setsockopts(fd, append(opts, more...)); err == nil {
		err = bindUDP(fd, netdev, sa, port)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func bindUDP(fd int, netdev string, sa unix.Sockaddr, port int) error {
	if netdev != "" {
		if err := unix.BindToDevice(fd, netdev); err != nil {
			return fmt.Errorf("softroce: bind UDP socket to netdev %s: %w", netdev, err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("softroce: bind UDP port %d: %w", port, err)
	}
	return nil
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

// setReceive sets the options of a receiving socket: destination addresses, and
// joined datagrams.
func setReceive(family, fd int) error {
	setReceiveBuffer(fd)
	opts := []sockopt{{unix.SOL_UDP, unix.UDP_GRO, 1}, {unix.SOL_IP, unix.IP_PKTINFO, 1}}
	if family == udp6 {
		opts[1] = sockopt{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1}
		// RoCE packets of Linux and of some adapters have no UDP checksum,
		// because the ICRC protects them. IPv6 sockets drop them without this
		// option.
		opts = append(opts, sockopt{unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1})
	}
	return setsockopts(fd, opts)
}

// setReceiveBuffer enlarges the receive buffer as far as the process is allowed
// to.
func setReceiveBuffer(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rcvBuf) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, rcvBuf)
	}
}

func (u *udpPorts) close() {
	for family, s := range u.sock {
		for _, s := range u.more[family] {
			s.close()
		}
		if s != nil {
			s.close()
		}
	}
	u.tx.close()
}

// overruns returns the number of datagrams that were dropped because a receive
// buffer was full.
func (u *udpPorts) overruns() (n uint64) {
	for family, s := range u.sock {
		if s != nil {
			n += s.overruns()
		}
		for _, s := range u.more[family] {
			n += s.overruns()
		}
	}
	return n
}

// overruns returns the number of datagrams that were dropped because the
// receive buffer was full.
func (s *socket) overruns() uint64 {
	const skMeminfoDrops = 8 // linux/sock_diag.h, SK_MEMINFO_DROPS
	var info [9]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || int(size) != len(info)*4 {
		return 0
	}
	return uint64(info[skMeminfoDrops])
}
