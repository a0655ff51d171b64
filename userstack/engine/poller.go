// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"golang.org/x/sys/unix"
)

// WatchReadable makes the loop call take in each round in which fd is readable. stop ends
// this; fd must still be open then. stop waits until a current call of take has returned,
// unless the loop itself calls stop. Errors: see [Loop.Watch].
func (l *Loop) WatchReadable(fd int, take func()) (stop func(), err error) {
	w, err := l.Watch(fd, unix.EPOLLIN, func(events uint32) {
		if events&unix.EPOLLERR != 0 {
			// An error such as ENETDOWN is reported in every round until
			// SO_ERROR is read.
			_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		}
		take()
	})
	if err != nil {
		return nil, err
	}
	return func() { w.Stop(fd); l.Sync() }, nil
}

// AtEnd returns a function that makes the loop call send once, in the last part of a
// round.
func (l *Loop) AtEnd(send func()) (schedule func()) { return l.LastTask(send).Schedule }

// WhenIdle returns a function that makes the loop call f once, as [Loop.IdleTask] does.
func (l *Loop) WhenIdle(f func()) (schedule func()) { return l.IdleTask(f).Schedule }

// Sync waits for the end of the current round. It returns at once if the loop itself calls
// it, or if the loop is closed.
func (l *Loop) Sync() {
	if l.src.Here() {
		return
	}
	over := make(chan struct{})
	l.Task(func() { close(over) }).Schedule()
	l.mu.Lock()
	l.callThread() // needed if the caller is a helper, which runs no tasks while it waits
	l.mu.Unlock()
	select {
	case <-over:
	case <-l.done:
	}
}
