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
	"smcr/userstack/internal/inside"
	"smcr/userstack/internal/rights"
	"smcr/userstack/internal/sockopt"
)

// SetOption implements broker.Handler.
func (s *Service) SetOption(_ context.Context, c *broker.Conn, r rights.Rights, level, name int, value []byte) error {
	h, ok := c.Data().(*held)
	if !ok {
		return syscall.ENOTCONN
	}
	return h.set(r, level, name, value)
}

func (h *held) set(r rights.Rights, level, name int, value []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := sockopt.WithRights(r, true, level, name, func() error {
		return sockopt.Set(h.sock, level, name, value)
	}); err != nil {
		return ended(err)
	}
	if h.smc != nil {
		h.keep.limit(h.sock, level, name)
		h.carryOption(level, name)
	}
	if level == unix.SOL_SOCKET && name == unix.SO_LINGER {
		h.noteLinger()
	}
	return nil
}

// carryOptions applies the options that the program has set on its socket to smc, if
// smc is not nil, and from now on every option that it sets.
func (h *held) carryOptions(smc *userstack.Conn, k inside.Carriage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLinger()
	if smc == nil {
		return
	}
	h.smc, h.carriage = smc, k
	// The statistics count only what a program sets on a connection. So an option that
	// has its default value is not set again.
	if number(h.sock, unix.IPPROTO_TCP, unix.TCP_NODELAY) == 0 {
		_ = smc.SetNoDelay(false)
	}
	if number(h.sock, unix.IPPROTO_TCP, unix.TCP_CORK) != 0 {
		_ = smc.SetCork(true)
	}
	for _, name := range keepAliveTimes {
		h.keep.limit(h.sock, unix.IPPROTO_TCP, name)
	}
	h.carryOption(unix.SOL_SOCKET, unix.SO_KEEPALIVE)
}

func (h *held) noteLinger() {
	sec, err := lingerOf(h.sock)
	h.linger0.Store(err == nil && sec == 0)
}

// ended converts the error of an option after the TCP socket is closed into an errno.
// The launcher then answers the call itself.
func ended(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return syscall.ENOTCONN
	}
	return err
}

// carryOption applies an option of the program's socket to the connection. The caller holds
// h.mu.
func (h *held) carryOption(level, name int) {
	sock := h.sock
	switch {
	case level == unix.IPPROTO_TCP && name == unix.TCP_CORK:
		_ = h.smc.SetCork(number(sock, level, name) != 0)
	case level == unix.IPPROTO_TCP && name == unix.TCP_NODELAY:
		_ = h.smc.SetNoDelay(number(sock, level, name) != 0)
	case level == unix.IPPROTO_TCP && name == unix.TCP_KEEPIDLE, level == unix.SOL_SOCKET && name == unix.SO_KEEPALIVE:
		var idle uint32
		if number(sock, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0 {
			idle = h.keep.idle(sock)
		}
		h.carriage.KeepLinkAlive(time.Duration(idle) * time.Second)
	}
}

// number returns an option that is a number, or 0 if it cannot be read.
func number(sock sockopt.Socket, level, name int) uint32 {
	v, err := sockopt.Get(sock, level, name, 4)
	if err != nil || len(v) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

// GetOption implements broker.Handler.
func (s *Service) GetOption(_ context.Context, c *broker.Conn, r rights.Rights, level, name, size int) ([]byte, error) {
	h, ok := c.Data().(*held)
	if !ok {
		return nil, syscall.ENOTCONN
	}
	return h.get(r, level, name, size)
}

func (h *held) get(r rights.Rights, level, name, size int) (v []byte, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err = sockopt.WithRights(r, false, level, name, func() (err error) {
		v, err = sockopt.Get(h.sock, level, name, size)
		return err
	})
	h.keep.shown(level, name, v)
	return v, ended(err)
}
