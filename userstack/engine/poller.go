// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"golang.org/x/sys/unix"
)

// WatchReadable calls take when fd is readable, each round as long as it is. The
// function that it returns ends that, and waits for a call under way unless it
// is called by the loop itself; fd must still be open.
func (l *Loop) WatchReadable(fd int, take func()) (stop func(), err error) {
	w, err := l.Watch(fd, unix.EPOLLIN, func(events uint32) {
		if events&unix.EPOLLERR != 0 {
			// Such as ENETDOWN. Asking takes it away, or it would be told for ever.
			_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		}
		take()
	})
	if err != nil {
		return nil, err
	}
	return func() { w.Stop(fd); l.Sync() }, nil
}

// AtEnd returns a function that has send called once in the last part of a
// round.
func (l *Loop) AtEnd(send func()) (schedule func()) { return l.LastTask(send).Schedule }

// WhenIdle returns a function that has f called once when idleMost has passed.
func (l *Loop) WhenIdle(f func()) (schedule func()) { return l.IdleTask(f).Schedule }

// Sync waits until the round under way is over. Called by the loop itself it
// returns at once.
func (l *Loop) Sync() {
	if l.src.Here() {
		return
	}
	over := make(chan struct{})
	l.Task(func() { close(over) }).Schedule()
	l.mu.Lock()
	l.callThread() // also if the caller is a helper, who runs nothing while it waits
	l.mu.Unlock()
	select {
	case <-over:
	case <-l.done:
	}
}
