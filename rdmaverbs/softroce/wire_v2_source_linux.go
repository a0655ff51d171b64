// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"smcr/rdmaverbs"

	"golang.org/x/sys/unix"
)

// srcPorts is the number of source ports for each IP version.
const srcPorts = 4

// sourcePorts are the UDP sockets with which a wire sends RoCE version 2 packets.
//
// A peer accepts the packets of a queue pair only from the port of the first valid
// packet (see sourceport.go). So no other user of the host may send from these ports.
// The kernel ensures this as long as the sockets are bound to no address and to no
// netdev: it then refuses a second socket with the same port and IP version, whatever
// address or netdev that one is bound to. (A socket that is bound to netdev eth0
// does not prevent another user from binding one to the same port and to lo. That
// socket can still send over eth0, with IP_PKTINFO.) The netdev is chosen for each
// message.
//
// Several source ports make several flows for paths with parallel links (annex
// A17). They are opened in advance, because only openWire is sure to run in the
// right network namespace. They are separate from the receiving socket, whose
// reader the poller would otherwise wake for each packet that leaves the send
// buffer.
//
// They are not connected, so the kernel looks up the route for each message.
// With a connected socket the kernel would count the IPv4 identification from a
// random number that is not readable, but the ICRC covers the identification.
type sourcePorts struct {
	// mu is held for reading by siblings that send with the sockets, and for
	// writing by close. The wire that has the sockets ensures itself that it sends
	// nothing after close.
	mu   sync.RWMutex
	sock [2][srcPorts]udpSource // by IP version
}

// udpSource is a sending socket.
type udpSource struct {
	fd   int // 0 if there is none
	port uint16
}

// Source ports are dynamic ports, as with adapters and with Linux's soft-RoCE
// (rdma_flow_label_to_udp_sport). Linux does not assign the ports from
// quietSourcePort on to programs by default (ip_local_port_range).
const (
	minSourcePort   = 0xc000
	quietSourcePort = 61000
	maxSourcePort   = 0xffff

	sourceTries = 64 // for each of the two ranges
)

// open opens the sockets of an IP version in the calling thread's network namespace.
func (s *sourcePorts) open(family int) error {
	for i := range s.sock[family] {
		fd, err := openSource(family)
		if err != nil {
			return err
		}
		u := &s.sock[family][i]
		u.fd = fd
		setSendBuffer(fd)
		// Nothing is to be received on it; the kernel keeps a minimum.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
		name, err := unix.Getsockname(fd)
		if err != nil {
			return fmt.Errorf("softroce: read UDP port: %w", err)
		}
		switch sa := name.(type) {
		case *unix.SockaddrInet4:
			u.port = uint16(sa.Port)
		case *unix.SockaddrInet6:
			u.port = uint16(sa.Port)
		}
	}
	return nil
}

// openSource opens a sending socket on a free dynamic port. If nearly all of
// these are in use, the kernel chooses another port.
func openSource(family int) (fd int, err error) {
	for i := range 2 * sourceTries {
		lowest := quietSourcePort
		if i >= sourceTries {
			lowest = minSourcePort
		}
		fd, err = openUDP(family, "", lowest+rand.IntN(maxSourcePort+1-lowest))
		if !errors.Is(err, unix.EADDRINUSE) {
			return fd, err
		}
	}
	return openUDP(family, "", 0)
}

// close closes the sockets, when no sibling sends with them.
func (s *sourcePorts) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for family := range s.sock {
		for i := range s.sock[family] {
			if u := &s.sock[family][i]; u.fd > 0 {
				unix.Close(u.fd)
				*u = udpSource{}
			}
		}
	}
}

// of returns the socket for packets with a path. Its fd is 0 if there is none.
func (s *sourcePorts) of(p *path) *udpSource {
	family := udp4
	if !p.sgid.Addr().Is4() {
		family = udp6
	}
	return &s.sock[family][p.flow%srcPorts]
}

// port returns the UDP source port of packets with a path, 0 for version 1.
func (s *sourcePorts) port(p *path) uint16 {
	if p.typ != rdmaverbs.RoCEv2 || s == nil {
		return 0
	}
	if u := s.of(p); u.fd > 0 {
		return u.port
	}
	// The kernel has no IPv6, so nobody else can have a socket with this port. The
	// packets of link-local GIDs need none.
	return minSourcePort | p.flow&(maxSourcePort-minSourcePort)
}
