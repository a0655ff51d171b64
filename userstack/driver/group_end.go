// SPDX-License-Identifier: Apache-2.0

package driver

// groupEnd is the part of a link group that knows how far its end has come. The group's lock
// guards it.
type groupEnd struct {
	dead   bool          // the group has ended: the core wants nothing done any more
	broken bool          // a panic has ended the group: see broken.go
	fallen bool          // broken, and the queue pairs are closed
	over   chan struct{} // closed once the group is dead and its memory and devices are given back
}

// isOver reports whether over is closed.
func (e *groupEnd) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}
