// SPDX-License-Identifier: Apache-2.0

package userstack

// With an engine of the stack's own, goroutines of the program do the work of its
// thread where they would else wake it: who posts something sends it before it
// returns (beginPost and endPost), and who waits looks for packets itself for a while
// (wait). See package engine.

// beginPost begins a section in which the calling goroutine may cause something to be
// sent; endPost, which follows, sends it if the engine sleeps. No lock of a group is
// held at either.
func (s *Stack) beginPost() {
	if s.loop != nil {
		s.loop.Enter()
	}
}

func (s *Stack) endPost() {
	if s.loop != nil {
		s.loop.Leave()
	}
}

// attend has the engine look for packets for a goroutine that is about to wait
// for one by other means than [Conn.wait].
func (s *Stack) attend() {
	if s.loop != nil {
		s.loop.Attend()
	}
}
