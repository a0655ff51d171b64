// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// tasks are the goroutines of a launcher. A panic in one of them is a bug. It must not end
// the launcher, without which the calls of all programs of the launch fail:
//
//	panic                             | then
//	----------------------------------+--------------------------------------------------
//	in the answer to a call           | the call fails with ECONNABORTED
//	in the answer to listen()         | the kernel does the call, and the socket stays TCP
//	in a look into a process          | the look fails, and its caller decides
//	in the handling of a message of   | the session ends, and the launcher looks for
//	the stack                         | another one
//	in any other task or timer        | what it works on stays as it is
//
// In each case the panic is logged with its stack and counted (Stats.Panics).
type tasks struct {
	wg    sync.WaitGroup
	guard guard.Guard
}

// begin calls f in a goroutine. what names it in the log.
func (t *tasks) begin(what string, f func()) { t.wg.Go(t.guard.Func(what, f)) }

// count counts a panic that another package has caught and this one logs.
func (t *tasks) count() {
	if t.guard.Count != nil {
		t.guard.Count()
	}
}

// connTask names what follows a connection of the program in the log.
const connTask = "a connection of the program"

// earlyTask names what is done for connections that wait to be accepted in the log.
const earlyTask = "a connection that is accepted early"

// callTask names the answer to a call in the log.
const callTask = "the answer to a call of the program"

// answerWith calls f, which answers n. If f panics, the call fails.
func (s *supervisor) answerWith(n *notif, f func()) {
	if s.tasks.guard.Do(callTask, f) != nil {
		s.fail(n, unix.ECONNABORTED) // too late if the call has its answer
	}
}

// answerLater calls f, which answers n, in a goroutine.
func (s *supervisor) answerLater(n *notif, f func()) {
	s.tasks.wg.Go(func() { s.answerWith(n, f) })
}
