// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a non-blocking socket whose reader waits in Go's poller. That
// wakes a waiting goroutine within microseconds where a thread blocked in
// poll(2) needs tens: the thread that finds the event runs the goroutine.
type socket struct {
	fd   int // for system calls, while the owner knows that it is open
	file *os.File
	raw  syscall.RawConn
}

// newSocket takes over fd, also when it fails.
func newSocket(fd int, name string) (*socket, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("softroce: %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("softroce: %s: %w", name, err)
	}
	return &socket{fd: fd, file: f, raw: raw}, nil
}

// close closes the socket; whenReadable returns.
func (s *socket) close() { s.file.Close() }

// whenReadable calls take, again as long as it returns true, else when the
// socket is readable, until it is closed or stop is set by whoever closes it.
func (s *socket) whenReadable(stop *atomic.Bool, take func() bool) {
	drain := func(uintptr) (done bool) {
		for !stop.Load() {
			if !take() {
				return false
			}
		}
		return true
	}
	for !stop.Load() {
		err := s.raw.Read(drain)
		if err == nil || errors.Is(err, os.ErrClosed) {
			return
		}
		// The poller reports an error of the socket, such as ENETDOWN when
		// the netdev goes down, if nothing else is to be reported. It lasts
		// until the next event.
		_ = s.raw.Control(func(fd uintptr) {
			_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		})
		time.Sleep(time.Millisecond)
	}
}
