// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"smcr/internal/run"
	"smcr/nl"

	"golang.org/x/sys/unix"
)

// probeWire connects a TCP socket, as a program does whose connections the stack takes at the devices, and reads the result
// from the stack's list. The error is nl.ErrNotSupported if the stack does not do that.
func probeWire(ctx context.Context, ctl nl.Control, remote netip.AddrPort) (out outcome, err error) {
	a, err := nl.AttacherOf(ctl)
	if err != nil {
		return out, err
	}
	if _, err := a.Attachments(ctx); err != nil {
		return out, err
	}
	_, none := run.Enter(ctx, a, true, slog.New(slog.DiscardHandler))
	// Without a run, the process may be in a cgroup that is attached, which the stack cannot always tell: its list does.
	out, err = probeListed(ctx, ctl, remote, family(remote.Addr()), unix.IPPROTO_TCP, "the stack does not list the connection: see 'smcr connection list'")
	if err != nil && none != nil {
		return out, fmt.Errorf("%w: %w", errNotAttached, none)
	}
	return out, err
}

// errNotAttached means that the stack does not take the connections of this process.
var errNotAttached = errors.New("the connections of this process cannot use the stack")

// family returns the address family of a TCP socket that connects to an address.
func family(a netip.Addr) int {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}
