// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"smcr/nl"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

// Protocols of AF_SMC (linux/smc.h).
const (
	smcProtoIPv4 = 0
	smcProtoIPv6 = 1
)

// pollStep is the time limit of each wait for the kernel, so that the end of the
// context is noticed, and the time between two listings.
const pollStep = 100 * time.Millisecond

// probeKernel connects an AF_SMC socket, for which the kernel makes all handshakes,
// and reads the result from sock_diag.
func probeKernel(ctx context.Context, ctl nl.Control, remote netip.AddrPort) (out outcome, err error) {
	protocol := smcProtoIPv4
	if remote.Addr().Is6() {
		protocol = smcProtoIPv6
	}
	return probeListed(ctx, ctl, remote, unix.AF_SMC, protocol, "the kernel does not list the connection: try 'modprobe smc_diag'")
}

// probeListed connects a socket and reads the result from the list of connections. absent says what to do if the list has not got it.
func probeListed(ctx context.Context, ctl nl.Control, remote netip.AddrPort, domain, protocol int, absent string) (out outcome, err error) {
	fd, err := socket(domain, protocol)
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
	out.Local = localAddr(fd)
	c := decided(ctx, ctl, out.Local, remote)
	out.Took = time.Since(begin)
	switch {
	case ctx.Err() != nil:
		out.TCPError = context.Cause(ctx)
		return out, nil
	case c != nil:
		out.listed(c)
		return out, nil
	}
	// It may have ended before it was decided.
	if out.TCPError, err = socketError(fd); err == nil && out.TCPError == nil {
		err = errors.New(absent)
	}
	return out, err
}

// decided returns the stack's row of a connection when it is decided what carries it, or nil if there is none. A stack may let connect()
// return before that.
func decided(ctx context.Context, ctl nl.Control, local, remote netip.AddrPort) *nl.Connection {
	for {
		c := find(ctx, ctl, local, remote)
		if c == nil || c.State != smc.StateInit {
			return c
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollStep):
		}
	}
}

// connect connects without blocking. sockErr is the error of the connection, and err
// any other error.
func connect(ctx context.Context, fd int, sa unix.Sockaddr) (sockErr, err error) {
	switch err := unix.Connect(fd, sa); {
	case err == nil:
		return nil, nil
	case !errors.Is(err, unix.EINPROGRESS):
		return err, nil
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(fds, int(pollStep.Milliseconds()))
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx), nil
		case errors.Is(err, unix.EINTR) || err == nil && n == 0:
			continue
		case err != nil:
			return nil, os.NewSyscallError("poll", err)
		}
		return socketError(fd)
	}
}

// socketError returns the error of a connection, and err if it cannot be asked for.
func socketError(fd int) (sockErr, err error) {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return nil, os.NewSyscallError("getsockopt SO_ERROR", err)
	case v != 0:
		return syscall.Errno(v), nil
	}
	return nil, nil
}

// listed sets the outcome from the socket's row.
func (o *outcome) listed(c *nl.Connection) {
	if c.Mode != nl.ModeTCP {
		o.Announced, o.SMC = true, true
		o.LinkGroup = c.LinkGroup
		if c.Link != nil {
			o.IBDev = c.Link.IBDev
		}
		return
	}
	o.Reason = smc.Diagnosis(c.Fallback.Reason)
	o.Announced = o.Reason != smc.DiagPeerNoSMC
	if o.Reason == smc.DiagPeerDeclined {
		o.Remote = true
		if c.Fallback.Peer == 0 { // it declined an earlier connection
			return
		}
		o.Reason = smc.Diagnosis(c.Fallback.Peer)
	}
	if o.Reason == 0 {
		o.Text = "the connection is plain TCP, and no reason is given"
	}
}
