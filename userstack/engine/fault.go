// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"smcr/guard"
)

// The functions that a loop calls belong to different connections, link groups and devices.
// A panic in one of them must not end the others:
//
//	panic in           | then
//	-------------------+---------------------------------------------------------------
//	a Task             | the loop goes on; the task may be scheduled again
//	a Watch            | the same, and the loop does not watch the descriptor any more
//	a Socket           | the same, and the loop calls the function of Socket.OnFault
//
// A panic is recovered once in a part of a round, and not in each call: that costs less. The
// rest of the part follows.

// SetGuard makes g handle the panics in functions that the loop calls. Without a guard, a
// panic ends the process. The loop may run already.
func (l *Loop) SetGuard(g *guard.Guard) { l.guard.Store(g) }

// handleEvents calls the functions that watch the n events of a round. turn is held.
func (l *Loop) handleEvents(n int) {
	for i := 0; i < n; {
		i = l.handleFrom(i, n)
	}
}

// handleFrom handles events from i on until a panic ends it. It returns the number of the
// next event.
func (l *Loop) handleFrom(i, n int) (next int) {
	if g := l.guard.Load(); g != nil {
		defer func() {
			if v := recover(); v != nil {
				g.Caught("an event of the engine", v)
				next = i + 1
			}
		}()
	}
	for ; i < n; i++ {
		l.src.Handle(i)
	}
	return n
}

// handleFound is handleEvents for the first n events that a driver has found.
func (l *Loop) handleFound(n int) {
	for i := 0; i < n; {
		i = l.handleFoundFrom(i, n)
	}
}

func (l *Loop) handleFoundFrom(i, n int) (next int) {
	if g := l.guard.Load(); g != nil {
		defer func() {
			if v := recover(); v != nil {
				g.Caught("an event of the engine", v)
				next = i + 1
			}
		}()
	}
	for ; i < n; i++ {
		l.ep.handle(&l.found[i])
	}
	return n
}

// runFrom runs the tasks of list from i on until a panic ends it. It returns the number of
// the next task.
func (l *Loop) runFrom(list []*Task, i int) (next int) {
	if g := l.guard.Load(); g != nil {
		defer func() {
			if v := recover(); v != nil {
				g.Caught("a task of the engine", v)
				next = i + 1
			}
		}()
	}
	for ; i < len(list); i++ {
		t := list[i]
		list[i] = nil
		t.f()
	}
	return len(list)
}
