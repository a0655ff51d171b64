// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import "context"

// stoppedCall is a system call of the program that waits for its answer. While it
// waits, an attempt can put a descriptor into the program.
type stoppedCall struct {
	n *notif
	// wait asks the attempt to keep the call, which is a connect(), and to answer it
	// at the end. nonblock asks for the answer at once if the call repeats one that a
	// signal interrupted and that was to be answered at once.
	wait, nonblock bool
	// kept is the attempt's answer: the attempt keeps the call.
	kept bool
	// early is the attempt's answer too: the program took the connection for made
	// before it was, and the call has to wait for the end of the attempt.
	early bool
	done  chan struct{}
}

// callQueue passes stopped calls to an attempt until it is over.
type callQueue struct {
	ch   chan *stoppedCall
	over chan struct{} // closed when the attempt needs no call any more
}

func newCallQueue() callQueue {
	return callQueue{ch: make(chan *stoppedCall), over: make(chan struct{})}
}

// offer offers a call to the attempt and reports whether the attempt keeps it. It
// returns false at once if the attempt is over, and may wait for its end otherwise.
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
