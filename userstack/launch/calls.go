// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import "context"

// stoppedCall is a system call of the program that waits for its answer. While it
// waits, an attempt can put a descriptor into the program.
type stoppedCall struct {
	n *notif
	// wait asks the attempt to keep the call, which is a connect(), and to answer it
	// when the attempt ends. nonblock asks for an answer at once if the call repeats an
	// interrupted call that the attempt would have answered at once.
	wait, nonblock bool
	// kept is set by the attempt: it keeps the call.
	kept bool
	// early is set by the attempt: the program saw the connection as established
	// before it was, and the call has to wait until the attempt is over.
	early bool
	done  chan struct{}
}

// callQueue passes stopped calls to an attempt until it is over.
type callQueue struct {
	ch   chan *stoppedCall
	over chan struct{} // closed when the attempt takes no more calls
}

func newCallQueue() callQueue {
	return callQueue{ch: make(chan *stoppedCall), over: make(chan struct{})}
}

// offer offers a call to the attempt and reports whether the attempt keeps it. It
// returns false at once if the attempt is over. Otherwise it may wait for the end of
// the attempt.
func (q *callQueue) offer(ctx context.Context, l *stoppedCall) (kept bool) {
	l.done = make(chan struct{})
	select {
	case q.ch <- l:
		<-l.done
		if l.early {
			select {
			case <-q.over:
			case <-ctx.Done():
			}
		}
		return l.kept
	case <-q.over:
		return false
	}
}

// isOver reports whether the attempt is over.
func (q *callQueue) isOver() bool {
	select {
	case <-q.over:
		return true
	default:
		return false
	}
}
