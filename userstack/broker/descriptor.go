// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// A Descriptor owns a file descriptor whose open file description is shared
// with a program. Unlike os.File it never touches O_NONBLOCK (which the
// program would see) and never enters the runtime's poller.
//
// It is safe for concurrent use; the number is valid inside Control, and Dup
// and Take are the ways to get one that outlives it.
type Descriptor struct {
	mu sync.RWMutex
	fd int
}

// NewDescriptor takes ownership of fd.
func NewDescriptor(fd int) *Descriptor { return &Descriptor{fd: fd} }

// Control calls f with the number, which stays open until f returns. It
// returns f's error, or an error wrapping os.ErrClosed.
func (d *Descriptor) Control(f func(fd int) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return os.ErrClosed
	}
	return f(d.fd)
}

// Dup returns a new descriptor (close-on-exec) of the same description, which
// the caller closes.
func (d *Descriptor) Dup() (int, error) {
	fd := -1
	err := d.Control(func(n int) (err error) {
		fd, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// Take passes the ownership to the caller, which must close the descriptor returned. It
// returns -1 if the descriptor was closed or taken before.
func (d *Descriptor) Take() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	fd := d.fd
	d.fd = -1
	return fd
}

// Close closes the descriptor as [bounded.Close] does. A second call does nothing.
func (d *Descriptor) Close() error {
	fd := d.Take()
	if fd < 0 {
		return nil
	}
	return bounded.Close(fd)
}

// CloseAside closes the descriptor as [bounded.CloseAside] does, and then calls then, even
// if the descriptor is closed already.
func (d *Descriptor) CloseAside(then func()) {
	fd := d.Take()
	if fd < 0 {
		then()
		return
	}
	bounded.CloseAside(fd, then)
}
