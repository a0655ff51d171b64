// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/sockopt"
)

// takeTCP calls the function takeTCP and prevents changes of options meanwhile.
func (h *held) takeTCP() (tcp *sharedTCP, restore func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return takeTCP(h.sock)
}

// takeTCP makes a sharedTCP from a program's socket. restore restores the blocking mode and the
// [sockopt.Reads] that the program had set.
func takeTCP(sock *broker.Descriptor) (_ *sharedTCP, restore func(), err error) {
	flags := 0
	var had sockopt.Reads
	restore = func() {
		_ = sock.Control(func(fd int) error {
			had.Set(fd)
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
			return err
		})
	}
	fd := -1
	err = sock.Control(func(n int) (err error) {
		if flags, err = unix.FcntlInt(uintptr(n), unix.F_GETFL, 0); err != nil {
			return err
		}
		had = sockopt.ReadsOf(n)
		had.Clear(n)
		fd, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, restore, fmt.Errorf("service: take a program's socket: %w", err)
	}
	t, err := newSharedTCP(fd, sock)
	return t, restore, err
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
