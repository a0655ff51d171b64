// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// takeTCP calls the function takeTCP and prevents changes of options meanwhile.
func (h *held) takeTCP() (tcp *sharedTCP, restore func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return takeTCP(h.sock)
}

// takeTCP makes a sharedTCP from a program's socket. restore restores the blocking
// mode that the program had set.
func takeTCP(sock *broker.Descriptor) (_ *sharedTCP, restore func(), err error) {
	flags := 0
	restore = func() {
		_ = sock.Control(func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
			return err
		})
	}
	opts := keepOptions(sock)
	fd := -1
	err = sock.Control(func(n int) (err error) {
		if flags, err = unix.FcntlInt(uintptr(n), unix.F_GETFL, 0); err != nil {
			return err
		}
		fd, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, restore, fmt.Errorf("service: take a program's socket: %w", err)
	}
	c, err := fileConn(fd)
	if err != nil {
		return nil, restore, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		_ = c.Close()
		return nil, restore, fmt.Errorf("%w: it is %T, not TCP", errSocket, c)
	}
	opts()
	t, err := newSharedTCP(tcp)
	return t, restore, err
}

// keepOptions reads the options that package net changes on a connection, and
// returns a function that restores them, because they belong to the program.
func keepOptions(sock *broker.Descriptor) (restore func()) {
	type option struct {
		level, name, value int
		known              bool
	}
	opts := [...]option{
		{level: unix.IPPROTO_TCP, name: unix.TCP_NODELAY},
		{level: unix.SOL_SOCKET, name: unix.SO_KEEPALIVE},
		{level: unix.IPPROTO_TCP, name: unix.TCP_KEEPIDLE},
		{level: unix.IPPROTO_TCP, name: unix.TCP_KEEPINTVL},
		{level: unix.IPPROTO_TCP, name: unix.TCP_KEEPCNT},
	}
	_ = sock.Control(func(fd int) error {
		for i := range opts {
			o := &opts[i]
			var err error
			o.value, err = unix.GetsockoptInt(fd, o.level, o.name)
			o.known = err == nil
		}
		return nil
	})
	return func() {
		_ = sock.Control(func(fd int) error {
			for _, o := range opts {
				if !o.known {
					continue
				}
				_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
			}
			return nil
		})
	}
}

// fileConn makes a net.Conn from fd. It closes fd or takes it over.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, fmt.Errorf("service: %w", os.ErrClosed)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	return c, nil
}
