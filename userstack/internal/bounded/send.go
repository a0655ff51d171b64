// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// Send sends a message over a seqpacket socket, whole or not at all, and waits for room no longer
// than limit. Errors: os.ErrDeadlineExceeded if there was no room.
//
// A deadline alone would be wrong: a process that gets no processor time until its own deadline
// is over would take the other one for dead, although there is room. Send tries before and after.
// Only one goroutine may send at a time.
func Send(c *net.UnixConn, b, oob []byte, limit time.Duration) error {
	if err := sendNow(c, b, oob); err != unix.EAGAIN {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, _, err := c.WriteMsgUnix(b, oob, nil)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if again := sendNow(c, b, oob); again != unix.EAGAIN {
		return again
	}
	return err
}

// sendNow returns EAGAIN itself if there is no room.
func sendNow(c *net.UnixConn, b, oob []byte) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := rc.Control(func(fd uintptr) {
		sent = retry.Interrupted(func() error { return unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
	}); err != nil {
		return err
	}
	if sent == nil || sent == unix.EAGAIN {
		return sent
	}
	return os.NewSyscallError("sendmsg", sent)
}
