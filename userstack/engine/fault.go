// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

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

// faults handles the panics in functions that a loop calls.
type faults struct {
	guard atomic.Pointer[guard.Guard] // nil: panics end the process
}

// SetGuard makes g handle the panics in functions that the loop calls. Without a guard, a
// panic ends the process. The loop may run already.
func (l *Loop) SetGuard(g *guard.Guard) { l.faults.guard.Store(g) }

// each calls f for the numbers from 0 to n-1. what names the calls in the log. After a panic
// it goes on with the next number.
func (x *faults) each(what string, n int, f func(i int)) {
	for i := 0; i < n; {
		i = x.from(what, i, n, f)
	}
}

// from calls f from i on until a panic ends it. It returns the next number.
func (x *faults) from(what string, i, n int, f func(i int)) (next int) {
	if g := x.guard.Load(); g != nil {
		defer func() {
			if v := recover(); v != nil {
				g.Caught(what, v)
				next = i + 1
			}
		}()
	}
	for ; i < n; i++ {
		f(i)
	}
	return n
}

// Names of the calls in the log.
const (
	eventTask = "an event of the engine"
	loopTask  = "a task of the engine"
)
