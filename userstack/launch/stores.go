// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"slices"
	"sync"
)

// stores has the running writes into the memory of stopped threads, and the running sends
// for them, for which the same holds.
//
// A signal can end the stop of a thread at any time, also between the
// launcher's check that the thread is still stopped and the write. In most
// cases the kernel then repeats the call, which is a new notification. If the
// launcher answered this one first, the thread would continue, and the write
// would change memory that the thread uses for something else by then, such as
// another stack frame. So a notification must wait for the writes of earlier
// notifications of its thread. It finds all of them here, because a write is
// entered before the check (notif.valid).
//
// If the handler of the signal was installed without SA_RESTART, the call is
// not repeated and the program continues with EINTR. A write in the
// microseconds in between cannot be prevented.
type stores struct {
	mu       sync.Mutex
	byThread map[int][]*storing
}

type storing struct {
	id   uint64 // of the notification
	done chan struct{}
}

// begin enters a write for n. It is called before n.valid. end ends the write.
func (x *stores) begin(n *notif) (end func()) {
	s := &storing{n.ID, make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byThread == nil {
		x.byThread = make(map[int][]*storing)
	}
	x.byThread[n.tid()] = append(x.byThread[n.tid()], s)
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		rest := x.byThread[n.tid()]
		if rest = slices.DeleteFunc(rest, func(o *storing) bool { return o == s }); len(rest) == 0 {
			delete(x.byThread, n.tid())
		} else {
			x.byThread[n.tid()] = rest
		}
		close(s.done)
	}
}

// earlier returns a channel that is closed when a write for another
// notification of n's thread is over, or nil if there is no such write.
func (x *stores) earlier(n *notif) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.byThread[n.tid()] {
		if s.id != n.ID {
			return s.done
		}
	}
	return nil
}
