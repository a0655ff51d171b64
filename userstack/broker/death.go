// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// deathLimit is for how long the launcher watches the process of the service after
	// the end of a session. deathTick is the time between two checks.
	deathLimit = 10 * time.Second
	deathTick  = 5 * time.Millisecond

	// soPeerPidfd is SO_PEERPIDFD (asm-generic/socket.h, Linux 6.5).
	soPeerPidfd = 77
)

// peerPidfd returns a pidfd of the process at the other end of c. It returns a closed
// Descriptor if the process cannot be found out, for example in another PID namespace
// before Linux 6.5.
func peerPidfd(c *net.UnixConn) *Descriptor {
	pidfd := -1
	rc, err := c.SyscallConn()
	if err != nil {
		return NewDescriptor(-1)
	}
	err = rc.Control(func(fd uintptr) {
		if n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPidfd); err == nil {
			pidfd = n
			return
		}
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || cred.Pid <= 0 {
			return
		}
		if n, err := unix.PidfdOpen(int(cred.Pid), 0); err == nil {
			pidfd = n
		}
	})
	if err != nil {
		return NewDescriptor(-1)
	}
	return NewDescriptor(pidfd)
}

// PID returns the process id of the service, or 0 if it is not known, for example in another
// PID namespace.
func (cl *Client) PID() (pid int) {
	rc, err := cl.t.c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = rc.Control(func(fd uintptr) { // fails if the session is over
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// awaitDeath waits until the process of pidfd has ended, and reports whether it has. It
// returns false when ctx ends, and after deathLimit.
func awaitDeath(ctx context.Context, pidfd *Descriptor) bool {
	limit := time.NewTimer(deathLimit)
	defer limit.Stop()
	tick := time.NewTicker(deathTick)
	defer tick.Stop()
	for {
		ended := false
		err := pidfd.Control(func(fd int) error {
			// A pidfd becomes readable when the process is a zombie: all its
			// descriptors are closed then.
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			ended = err == nil && n > 0
			return nil
		})
		if err != nil {
			return false
		}
		if ended {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return false
		case <-tick.C:
		}
	}
}

// unreadMark is the SO_PRIORITY of an end from which the service does not read any more.
// SO_PRIORITY has no other use on a unix socket. A message could not arrive any more when
// the session has ended, but this mark stays.
const unreadMark = 1

// MarkUnread records on the socket end that the service does not read from it any more. The
// launcher, which has a copy of end, sees this with MarkedUnread. The error is a
// syscall.Errno.
func MarkUnread(end int) error {
	return unix.SetsockoptInt(end, unix.SOL_SOCKET, unix.SO_PRIORITY, unreadMark)
}

// MarkedUnread reports whether MarkUnread was called for this or another descriptor of end.
func MarkedUnread(end int) bool {
	v, err := unix.GetsockoptInt(end, unix.SOL_SOCKET, unix.SO_PRIORITY)
	return err == nil && v == unreadMark
}
