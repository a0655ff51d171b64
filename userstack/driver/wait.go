// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"net"
	"os"
	"sync/atomic"
	"time"

	"smcr/userstack/engine"
)

// waiting lets a program wait in one direction of a connection: for a wake-up, for the
// deadline, or for the end of the connection. Call begin before use.
type waiting struct {
	wake     chan struct{}
	deadline deadline
	closed   *atomic.Bool    // Close or Abort was called
	done     <-chan struct{} // closed when the connection has ended
	drive    *engine.Waiter  // nil without an engine of the stack
	ready    func() bool     // reports whether a wait is over
}

// begin initializes w. passed is called when the deadline has passed.
func (w *waiting) begin(e *Ending, drive *engine.Waiter, passed func()) {
	w.wake, w.deadline = make(chan struct{}, 1), makeDeadline()
	w.closed, w.done, w.drive = &e.closed, e.done, drive
	w.deadline.passed = passed
	if drive != nil {
		w.ready = w.over
	}
}

// SetDeadline makes waits end at t: those under way and those that begin later. The zero time
// means no deadline.
func (w *waiting) SetDeadline(t time.Time) { w.deadline.set(t) }

// Barred returns why no operation may begin now, or nil: net.ErrClosed after Close or Abort,
// or os.ErrDeadlineExceeded.
func (w *waiting) Barred() error {
	switch {
	case w.closed.Load():
		return net.ErrClosed
	case w.deadline.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Wait waits until another try can succeed. The error is os.ErrDeadlineExceeded when the
// deadline has passed.
func (w *waiting) Wait() error {
	if w.drive != nil && !w.drive.Drive(w.ready) {
		defer w.drive.Served()
	}
	select {
	case <-w.wake:
		return nil
	case <-w.done:
		return nil
	case <-w.deadline.wait():
		return os.ErrDeadlineExceeded
	}
}

// over reports whether Wait must not wait any more.
func (w *waiting) over() bool {
	if len(w.wake) > 0 || w.deadline.expired() {
		return true
	}
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// Woken reports whether a wake-up is pending, and clears it.
func (w *waiting) Woken() bool {
	select {
	case <-w.wake:
		return true
	default:
		return false
	}
}

// tell wakes the goroutine that waits.
func (w *waiting) tell() { wake(w.wake) }

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
