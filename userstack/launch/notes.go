// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// notesAfter is how long a note waits for others, to be told together.
	notesAfter = 20 * time.Millisecond
	// maxNotes is how many wait at most. Beyond that the stack, which is late to
	// take them, does not hear of a connection.
	maxNotes = 64 * broker.MaxNotes
)

// notes collects what the stack is to know of connections that it was not asked
// about.
type notes struct {
	mu      sync.Mutex
	waiting []broker.Note
	under   bool // a timer or a goroutine is about to tell them
}

// leftToTCP counts a connection that is TCP and of which the stack was not asked.
func (s *supervisor) leftToTCP(fd int, client bool, o outcome) {
	s.stats.tcp(o.reason())
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return
	}
	x := &s.notes
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.waiting) < maxNotes {
		x.waiting = append(x.waiting, broker.Note{Cookie: cookie, Reason: o.note(), Client: client})
	}
	if !x.under {
		x.under = true
		time.AfterFunc(notesAfter, s.tellNotes)
	}
}

// tellNotes tells the stack what waits.
func (s *supervisor) tellNotes() {
	x := &s.notes
	x.mu.Lock()
	waiting := x.waiting
	x.waiting, x.under = nil, false
	x.mu.Unlock()
	b := s.sessions.live()
	for len(waiting) > 0 && b != nil {
		n := min(len(waiting), broker.MaxNotes)
		if err := b.Note(waiting[:n]); err != nil {
			s.log.Debug("cannot tell the stack of connections over TCP", "err", err)
			return
		}
		waiting = waiting[n:]
	}
}
