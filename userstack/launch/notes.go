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
	// notesAfter is how long a note waits for others, so that they are sent
	// together.
	notesAfter = 20 * time.Millisecond
	// maxNotes is the largest number of waiting notes. Further ones are dropped
	// if the stack is too slow.
	maxNotes = 64 * broker.MaxNotes
)

// notes collects messages to the stack about connections for which it was not
// asked.
type notes struct {
	mu      sync.Mutex
	waiting []broker.Note
	under   bool // a timer or a goroutine will send them
}

// leftToTCP counts a connection that uses TCP without a question to the stack,
// and notes it for the stack.
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
		time.AfterFunc(notesAfter, s.tasks.guard.Func("the notes to the stack", s.tellNotes))
	}
}

// tellNotes sends the waiting notes to the stack.
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
