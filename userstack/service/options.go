// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// SetOption implements broker.Handler.
func (s *Service) SetOption(_ context.Context, c *broker.Conn, level, name int, value []byte) error {
	h, ok := c.Data().(*held)
	if !ok {
		return syscall.ENOTCONN
	}
	if c.Launcher().UID != 0 && !harmless(level, name) {
		return syscall.EPERM
	}
	if err := broker.SetSockopt(h.sock, level, name, value); err != nil {
		return err
	}
	if level == unix.IPPROTO_TCP && len(value) >= 4 {
		on := binary.NativeEndian.Uint32(value) != 0
		switch smc := h.smc.Load(); {
		case smc == nil:
		case name == unix.TCP_CORK:
			_ = smc.SetCork(on)
		case name == unix.TCP_NODELAY:
			_ = smc.SetNoDelay(on)
		}
	}
	if level == unix.SOL_SOCKET && name == unix.SO_LINGER {
		sec, err := lingerOf(h.sock)
		h.linger0.Store(err == nil && sec == 0)
	}
	return nil
}

// GetOption implements broker.Handler.
func (s *Service) GetOption(_ context.Context, c *broker.Conn, level, name, size int) ([]byte, error) {
	h, ok := c.Data().(*held)
	if !ok {
		return nil, syscall.ENOTCONN
	}
	return broker.GetSockopt(h.sock, level, name, size)
}

// harmless lists the options that an unprivileged program may set on its
// socket: the service has more privileges than the program and must not lend
// them.
func harmless(level, name int) bool {
	switch level {
	case unix.SOL_SOCKET:
		switch name {
		case unix.SO_KEEPALIVE, unix.SO_LINGER, unix.SO_OOBINLINE, unix.SO_RCVBUF, unix.SO_SNDBUF,
			unix.SO_REUSEADDR, unix.SO_REUSEPORT, unix.SO_RCVLOWAT, unix.SO_RCVTIMEO, unix.SO_SNDTIMEO,
			unix.SO_DONTROUTE, unix.SO_TIMESTAMP, unix.SO_INCOMING_CPU, unix.SO_ZEROCOPY:
			return true
		}
	case unix.IPPROTO_TCP:
		switch name {
		case unix.TCP_ULP, unix.TCP_REPAIR, unix.TCP_CONGESTION, unix.TCP_MD5SIG, unix.TCP_MD5SIG_EXT:
			return false
		}
		return true
	case unix.IPPROTO_IP:
		switch name {
		case unix.IP_TOS, unix.IP_TTL, unix.IP_MTU_DISCOVER, unix.IP_RECVERR, unix.IP_PKTINFO, unix.IP_RECVTOS, unix.IP_RECVTTL, unix.IP_BIND_ADDRESS_NO_PORT:
			return true
		}
	case unix.IPPROTO_IPV6:
		switch name {
		case unix.IPV6_TCLASS, unix.IPV6_UNICAST_HOPS, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR, unix.IPV6_V6ONLY, unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT, unix.IPV6_RECVPKTINFO:
			return true
		}
	}
	return false
}
