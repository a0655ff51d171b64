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
	// user is the user who has passed the socket, if foreign: calls that may need its lock
	// are bounded.
	user    uint32
	foreign bool

	mu   sync.Mutex
	fd   int           // -1: closed or taken
	busy int           // calls of Control
	left chan struct{} // closed when busy is 0; nil: nobody waits
	last func()        // closes the descriptor when busy is 0; nil: it is not closed yet
}

// NewDescriptor takes ownership of fd.
func NewDescriptor(fd int) *Descriptor { return &Descriptor{fd: fd} }

// of records that user uid has passed the socket. It is called before the descriptor is used.
func (d *Descriptor) of(uid uint32) {
	if d != nil {
		d.user, d.foreign = uid, true
	}
}

// User returns the user who has passed the socket, or root.
func (d *Descriptor) User() uint32 { return d.user }

// Control calls f with the number, which stays open until f returns. It
// returns f's error, or an error wrapping os.ErrClosed. If a user has passed the socket, it may
// return [bounded.ErrLocked]: see Bounded.
func (d *Descriptor) Control(f func(fd int) error) error {
	return d.Bounded(func() error {
		d.mu.Lock()
		fd := d.fd
		if fd < 0 {
			d.mu.Unlock()
			return os.ErrClosed
		}
		d.busy++
		d.mu.Unlock()
		defer d.leave()
		return f(fd)
	})
}

// Bounded calls f, which makes system calls on a duplicate of the descriptor that may need the
// lock of its socket. A user can keep that lock for ever, so calls on the sockets of each user,
// and of all users, are bounded: beyond that, the error is [bounded.ErrLocked].
func (d *Descriptor) Bounded(f func() error) error {
	if !d.foreign {
		return f()
	}
	if err := bounded.Enter(d.user); err != nil {
		return err
	}
	defer bounded.Leave(d.user)
	return f()
}

// leave ends a call of Control.
func (d *Descriptor) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy--; d.busy > 0 {
		return
	}
	if d.left != nil {
		close(d.left)
		d.left = nil
	}
	if last := d.last; last != nil {
		d.last = nil
		go last() // No guard: it closes a descriptor.
	}
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
// returns -1 if the descriptor was closed or taken before. It waits for calls of Control.
func (d *Descriptor) Take() int {
	d.mu.Lock()
	fd := d.fd
	d.fd = -1
	var left chan struct{}
	if fd >= 0 && d.busy > 0 {
		if d.left == nil {
			d.left = make(chan struct{})
		}
		left = d.left
	}
	d.mu.Unlock()
	if left != nil {
		<-left
	}
	return fd
}

// release is Take for a close, which does not wait. If it returns -1, the descriptor is closed
// by later, as soon as there is no call of Control, or was closed before.
func (d *Descriptor) release(later func(fd int)) (fd int, closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.fd
	d.fd = -1
	if n >= 0 && d.busy > 0 {
		d.last = func() { later(n) }
		return -1, false
	}
	return n, n < 0
}

// Close closes the descriptor as [bounded.Close] does. A second call does nothing. If there are
// calls of Control, the last of them closes it: one that waits for the lock of a socket may
// wait for ever.
func (d *Descriptor) Close() error {
	if fd, _ := d.release(func(fd int) { _ = bounded.Close(fd) }); fd >= 0 {
		return bounded.Close(fd)
	}
	return nil
}

// CloseAside closes the descriptor as [bounded.CloseAside] does, and then calls then, even
// if the descriptor is closed already.
func (d *Descriptor) CloseAside(then func()) {
	fd, closed := d.release(func(fd int) { bounded.CloseAside(fd, then) })
	switch {
	case fd >= 0:
		bounded.CloseAside(fd, then)
	case closed:
		then()
	}
}
