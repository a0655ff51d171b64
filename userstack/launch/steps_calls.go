// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

// What the calls of a program do to its attempt to make a connection: see steps.

// offered uses a call of the program for what is to be done.
func (x *steps) offered(l *stoppedCall) {
	keep := x.keeps(l)
	switch x.stage {
	case stageSwap:
		if x.place(l.n, x.nonblock) {
			// Of several calls that were interrupted, one may be known by now
			// that another had replaced when the call was offered.
			if keep && (x.n == nil || !x.valid(x.n)) {
				x.keep(l)
			}
			// connect() was interrupted, and the TCP socket looked ready since.
			x.early = x.early || !keep
			l.early = !keep
			x.goCLC()
			return
		}
		if x.duplicated() {
			if keep && (x.n == nil || !x.valid(x.n)) {
				x.keep(l)
			}
			x.withdraw()
			return
		}
	case stageGive, stageGiveOwn:
		if keep {
			x.keep(l)
		}
		x.give(l.n)
		return
	case stageJoin:
		if keep {
			x.keep(l)
		}
		x.join(l.n)
		return
	case stageFailed:
		if x.placed() {
			x.swapBack(l.n)
		}
		x.end()
		x.retire()
		return
	}
	if x.n != nil && x.valid(x.n) {
		return
	}
	x.n = nil
	switch {
	case keep:
		x.keep(l)
		if x.nonblock && (x.placed() || x.stage == stageHeld || x.stage == stageOrphan) {
			x.held()
		}
	case (!x.nonblock || !x.begun) && !x.placed() && x.place(l.n, x.nonblock):
		// connect() was interrupted, and the program has looked at the TCP
		// socket since, which says little of the connection.
		x.early = true
	case x.duplicated():
		x.withdraw()
	}
	l.early = x.early && !keep
}

// give gives the program its TCP socket with call n, unless the program already
// wrote into the pair. A connect() that waits is answered. If a signal has interrupted n, the next
// call, which is often the same one, serves as well.
func (x *steps) give(n *notif) {
	switch {
	case !x.wrote() && x.swapBack(n):
	case !x.wrote() && !x.valid(n):
		x.dropGone()
		return
	default:
		x.carryNow()
		return
	}
	x.release()
	if x.n != nil {
		x.goNative()
		return
	}
	x.end()
	x.native(nil, 0, true)
}

// keeps reports whether a call is a connect() that must be answered when the
// attempt has a result: a blocking one, or a non-blocking one that a signal
// interrupted and the kernel repeated. A non-blocking one after another was
// answered is answered at once.
func (x *steps) keeps(l *stoppedCall) bool {
	return l.wait && (!l.nonblock || !x.blocking && !x.begun)
}

func (x *steps) keep(l *stoppedCall) {
	x.n, x.nonblock, l.kept = l.n, l.nonblock, true
}
