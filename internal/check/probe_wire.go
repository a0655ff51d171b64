// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"smcr/internal/run"
	"smcr/nl"

	"golang.org/x/sys/unix"
)

// probeWire connects a TCP socket, as a program does whose connections the stack takes at the devices, and reads the result
// from the stack's list. The error is nl.ErrNotSupported if the stack does not do that.
func probeWire(ctx context.Context, ctl nl.Control, a nl.Attacher, remote netip.AddrPort) (out outcome, err error) {
	if _, err := a.Attachments(ctx); err != nil {
		return out, err
	}
	if _, err := run.Enter(ctx, a, true, slog.New(slog.DiscardHandler)); err != nil {
		return out, fmt.Errorf("the connections of this process cannot use the stack: %w", err)
	}
	domain := unix.AF_INET
	if remote.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := socket(domain, unix.IPPROTO_TCP)
	if err != nil {
		return out, err
	}
	defer unix.Close(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return out, os.NewSyscallError("fcntl", err)
	}
	sa, err := sockaddr(remote)
	if err != nil {
		return out, err
	}
	begin := time.Now()
	if out.TCPError, err = connect(ctx, fd, sa); err != nil || out.TCPError != nil {
		return out, err
	}
	out.Took = time.Since(begin)
	out.Local = localAddr(fd)
	c := find(ctx, ctl, out.Local, remote)
	if c == nil {
		return out, errors.New("the stack does not list the connection: see 'smcr connection list'")
	}
	out.listed(c)
	return out, nil
}
