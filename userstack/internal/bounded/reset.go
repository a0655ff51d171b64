// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxResets bounds the threads in ResetConn. A program can make the kernel hold the lock of
// its TCP socket for any time, by sending from memory whose pages never come, and a wait
// for this lock cannot be interrupted. So this bound is far above maxCalls.
const maxResets = 512

var (
	resetting = make(chan struct{}, maxResets)
	stuck     atomic.Int32 // resets that took longer than callTime
)

// ResetConn closes a connection in Go's poller so that its peer sees a reset. It waits for
// the reset, at most for callTime, and not at all while another reset takes longer than
// that. The error is that of c.Close.
func ResetConn(c interface {
	syscall.Conn
	io.Closer
}) error {
	last := -1
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			if dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				last = dup
			}
		})
	}
	err := c.Close()
	if last < 0 {
		return err
	}
	over := make(chan struct{})
	// No guard: it only makes system calls.
	go func() {
		resetting <- struct{}{}
		defer func() { <-resetting; close(over) }()
		_ = unix.SetsockoptLinger(last, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(last)
	}()
	if stuck.Load() > 0 {
		return err
	}
	t := time.NewTimer(callTime)
	defer t.Stop()
	select {
	case <-over:
	case <-t.C:
		stuck.Add(1)
		go func() {
			<-over
			stuck.Add(-1)
		}()
	}
	return err
}
