// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack"
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
	return h.set(level, name, value)
}

func (h *held) set(level, name int, value []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := broker.SetSockopt(h.sock, level, name, value); err != nil {
		return ended(err)
	}
	if h.smc != nil {
		carryOption(h.smc, h.sock, level, name)
	}
	if level == unix.SOL_SOCKET && name == unix.SO_LINGER {
		h.noteLinger()
	}
	return nil
}

// carryOptions applies what the program has set on its socket so far, and from
// now on what it sets, to smc, if there is one.
func (h *held) carryOptions(smc *userstack.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLinger()
	if smc == nil {
		return
	}
	h.smc = smc
	carryOption(smc, h.sock, unix.IPPROTO_TCP, unix.TCP_NODELAY)
	carryOption(smc, h.sock, unix.IPPROTO_TCP, unix.TCP_CORK)
	carryOption(smc, h.sock, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
}

func (h *held) noteLinger() {
	sec, err := lingerOf(h.sock)
	h.linger0.Store(err == nil && sec == 0)
}

// ended makes an errno of what becomes of an option once the TCP socket is no
// more: the launcher knows better then.
func ended(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return syscall.ENOTCONN
	}
	return err
}

// carryOption applies an option of the program's socket to the connection.
func carryOption(smc *userstack.Conn, sock *broker.Descriptor, level, name int) {
	get := func(level, name int) uint32 {
		v, err := broker.GetSockopt(sock, level, name, 4)
		if err != nil || len(v) != 4 {
			return 0
		}
		return binary.NativeEndian.Uint32(v)
	}
	switch {
	case level == unix.IPPROTO_TCP && name == unix.TCP_CORK:
		_ = smc.SetCork(get(level, name) != 0)
	case level == unix.IPPROTO_TCP && name == unix.TCP_NODELAY:
		_ = smc.SetNoDelay(get(level, name) != 0)
	case level == unix.IPPROTO_TCP && name == unix.TCP_KEEPIDLE, level == unix.SOL_SOCKET && name == unix.SO_KEEPALIVE:
		var idle uint32
		if get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0 {
			idle = get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		}
		smc.KeepLinkAlive(time.Duration(idle) * time.Second)
	}
}

// GetOption implements broker.Handler.
func (s *Service) GetOption(_ context.Context, c *broker.Conn, level, name, size int) ([]byte, error) {
	h, ok := c.Data().(*held)
	if !ok {
		return nil, syscall.ENOTCONN
	}
	return h.get(level, name, size)
}

func (h *held) get(level, name, size int) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, err := broker.GetSockopt(h.sock, level, name, size)
	return v, ended(err)
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
