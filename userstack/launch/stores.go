// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"slices"
	"sync"
)

// stores are the writes into the memory of stopped threads that are under way.
//
// A signal ends the stop of a thread at any time, also between the moment in which
// the launcher has seen that it is still stopped and the write. Most often the
// kernel then makes the same call again, which is another notification. Were that
// one answered first, the thread would go on, and the write would hit what its
// memory is used for by then, such as another frame of its stack. So a notification
// has to wait for the stores of earlier ones of its thread. It finds all of them
// here: one that comes to write was entered before the launcher saw the thread
// stopped in the earlier call (notif.valid).
//
// Where the signal's handler was installed without SA_RESTART, the call is not made
// again, and the program goes on with EINTR: nothing can keep a store out of the
// microseconds in between.
type stores struct {
	mu       sync.Mutex
	byThread map[int][]*storing
}

type storing struct {
	id   uint64 // of the notification
	done chan struct{}
}

// begin enters a store for n, before n.valid is asked; end ends it.
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

// earlier returns what is closed when a store for another notification of n's thread
// is over, or nil if there is none.
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
