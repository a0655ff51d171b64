// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"cmp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// swapTime limits the wait for a call with which the pair's end can be
	// placed, after connect() was interrupted. The peer waits for the CLC
	// PROPOSAL during this time.
	swapTime = time.Second
	// failedTime is how long a failed attempt keeps the TCP socket, so that a
	// call of the program can get it back.
	failedTime = 2 * time.Second
	// joinTime limits the wait for a call with which the end that the service made can be
	// placed. It is longer than on an idle machine, because the connection is TCP without
	// such a call. A program that writes does not wait.
	joinTime = time.Second
)

// stage is the state of an attempt to make a connection.
type stage uint8

const (
	// stageTCP: the service makes the TCP connection. The program has its TCP socket.
	stageTCP stage = iota
	// stageHeld: the same, and it takes long. The program gets the pair at the next
	// opportunity.
	stageHeld
	// stageSwap: the peer speaks SMC. A call of the program is needed to place the pair.
	stageSwap
	// stageCLC: the service negotiates SMC. The program has the pair.
	stageCLC
	// stageWithdraw: the service gives the connection up, because the socket has another
	// descriptor. The program has the TCP socket.
	stageWithdraw
	// stageOrphan: the session with the service is over. The service still has
	// descriptors of the connection.
	stageOrphan
	// stageOwn: the launcher makes the TCP connection. The program has the pair.
	stageOwn
	// stageJoin: the service has made an end for the program, which has the pair. A call of
	// the program is needed to place the end. If none comes, it is TCP.
	stageJoin
	// stageGive: it is TCP, and the program has the pair. A call of the program is
	// needed to give it its socket. If none comes, the service carries the bytes.
	stageGive
	// stageGiveOwn: the same, and the launcher would carry the bytes.
	stageGiveOwn
	// stageFailed: a failure must be reported to the program.
	stageFailed
	// stageOver: the attempt is over.
	stageOver
)

// steps decides how one connection is made. It does I/O only with hands.
// Several calls of connect() may come during an attempt: n is the one that
// waits for the result.
//
//	stage             | event              | what is done                                  | then
//	tcp               | hold time over     | place; a non-blocking call is answered         | held
//	held              | a connect()        | place; a non-blocking call is answered         | held
//	tcp held          | not a candidate    | if placed: connect                             | own
//	                  |                    | else: the kernel connects                      | over
//	tcp held own      | no SMC             | if not placed: the call is answered            | over
//	                  |                    | if a call waits: swap back                     | over
//	                  |                    | else: drain, wait for a call                   | give-own
//	tcp held          | SMC                | if placed, or place can be done: proceed       | clc
//	                  |                    | else: wait for a call                          | swap
//	tcp held swap     | place finds that   | count, cancel                                  | withdraw
//	                  | the socket was     |                                                |
//	                  | duplicated         |                                                |
//	withdraw          | service gone       | await the end of the service                   | orphan
//	tcp held          | local              | if a call waits: place its end, also for that  | over
//	                  |                    | of the pair; if it cannot be done: as no SMC   | over, give-own
//	                  |                    | if placed: drain, wait for a call              | join
//	join              | a call             | place its end; if it cannot be done, or the    | over
//	                  |                    | program wrote: as in give-own                  |
//	join              | wrote, time over,  | as in give-own                                 | over
//	                  | programs ended     |                                                |
//	join              | service gone       | wait for a call                                | give-own
//	swap              | a call             | place, proceed                                 | clc
//	swap              | time over          | cancel, fail                                   | failed, over
//	clc               | ready, SMC         | drain, the service carries                     | over
//	clc               | not a candidate    | disconnect, connect                           | own
//	clc               | ready, TCP         | as no SMC, but the service carries             | over, give
//	tcp held swap clc | failed             | fail                                           | failed, over
//	own               | failed             | fail                                           | failed, over
//	tcp held swap clc | service gone       | await the end of the service                   | orphan
//	orphan            | dead               | disconnect; if placed, or no call: connect     | own
//	                  |                    | else: the kernel connects                      | over
//	give              | service gone       | -                                              | give-own
//	give give-own     | a call             | swap back; if it cannot be done: carry         | over
//	give give-own     | wrote, time over   | carry                                          | over
//	give give-own     | programs ended     | if wrote, or not hung up yet: carry            | over
//	failed            | a call, time over  | swap back                                      | over
//	failed            | anything else      | -                                              | failed
//	any other         | hung up            | cancel                                         | over
type steps struct {
	hands
	stage    stage
	n        *notif
	nonblock bool // the socket was non-blocking in that call, or in the last one
	blocking bool // the socket was blocking in the first call
	begun    bool // connect() has returned EINPROGRESS
	early    bool // see stoppedCall.early
	decide   time.Duration
	offer    *broker.Descriptor // stageJoin: the end that the service made
}

func (x *steps) over() bool { return x.stage == stageOver }

// connecting reports whether the service is making the connection.
func (x *steps) connecting() bool { return x.stage <= stageCLC }

// event handles an event of the service, and the results of connect and
// awaitServiceEnd.
func (x *steps) event(ev broker.Event) {
	switch ev.Kind {
	case broker.EventNotCandidate:
		if x.stage > stageHeld && x.stage != stageCLC {
			return
		}
		x.counts(broker.ModeTCP, ev.Text)
		if x.stage == stageCLC { // the server has taken the messages of SMC for data
			x.dead()
			return
		}
		if x.placed() {
			x.goOwn()
			return
		}
		x.end()
		x.leave(x.n)
	case broker.EventEstablished:
		x.established(ev.PeerSMC, ev.Text)
	case broker.EventLocal:
		x.local(ev.End)
	case broker.EventReady:
		if x.stage == stageCLC {
			x.ready(ev)
		}
	case broker.EventFailed:
		if x.connecting() || x.stage == stageOwn {
			x.failed(ev.Errno, ev.Errno.Error())
		}
	case broker.EventClosed:
		x.serviceGone()
	case eventDead:
		if x.stage == stageOrphan {
			x.dead()
		}
	}
}

// eventDead is an event of the launcher itself: the service has no descriptor
// of the connection any more.
const eventDead broker.EventKind = 255

func (x *steps) goOwn() {
	x.stage = stageOwn
	x.connect()
}

func (x *steps) established(smc bool, why string) {
	switch {
	case x.stage == stageOwn:
		x.giveBack(byLauncher)
	case x.stage > stageHeld:
	case !smc:
		x.counts(broker.ModeTCP, cmp.Or(why, ReasonNoPeer))
		x.learn(noPeer)
		x.giveBack(byLauncher)
	case x.placed() || x.n != nil && x.place(x.n, x.nonblock):
		x.goCLC()
	case x.duplicated():
		x.withdraw()
	default:
		x.dropGone()
		x.stage = stageSwap
		x.await(swapTime)
	}
}

// withdraw ends what the service does, because the socket must be TCP: it has another
// descriptor. The connection is made again then, without SMC.
func (x *steps) withdraw() {
	if x.stage > stageSwap {
		return
	}
	x.counts(broker.ModeTCP, ReasonDuplicated)
	x.stage = stageWithdraw
	x.await(0)
	x.cancel()
}

// goCLC lets the service begin the CLC handshake.
func (x *steps) goCLC() {
	x.stage = stageCLC
	x.await(0)
	if x.proceed() && x.nonblock {
		x.answerCall(unix.EINPROGRESS)
	}
}

// local handles an end that the service made. It closes the end if it cannot
// place it, now or with the next call.
func (x *steps) local(end *broker.Descriptor) {
	x.dropGone()
	if x.stage <= stageHeld && x.n == nil && x.placed() && end != nil {
		x.stage, x.offer = stageJoin, end
		if !x.drain() {
			x.failed(unix.ECONNABORTED, "")
			return
		}
		x.watch()
		x.await(joinTime)
		return
	}
	can := x.stage <= stageHeld && x.n != nil && end != nil
	if end != nil {
		defer end.Close() //nolint:errcheck // unless it is taken
	}
	switch {
	case can && x.placeLocal(x.n, x.nonblock, end):
		x.counts(broker.ModeLocal, "")
		x.proceed()
		if x.nonblock {
			x.answerCall(unix.EINPROGRESS)
		}
		x.end()
		x.carry(x.n, byNobody)
	case x.stage <= stageHeld:
		x.dropGone()
		x.counts(broker.ModeTCP, ReasonNotPlaced)
		x.release()
		x.giveBack(byLauncher)
	}
}

// join places the end that the service made with call n, unless the program already wrote into
// the pair.
func (x *steps) join(n *notif) {
	if x.wrote() || !x.placeLocal(n, x.nonblock, x.offer) {
		x.notJoined(ReasonNotPlaced)
		x.give(n)
		return
	}
	x.counts(broker.ModeLocal, "")
	x.proceed()
	x.end()
	x.carry(x.n, byNobody)
}

// notJoined makes an attempt in stageJoin one that is TCP.
func (x *steps) notJoined(why string) {
	x.dropOffer()
	x.counts(broker.ModeTCP, why)
	x.release()
	x.stage = stageGiveOwn
}

// dropOffer closes the end that the service made, if nobody has taken it.
func (x *steps) dropOffer() {
	if x.offer != nil {
		_ = x.offer.Close()
		x.offer = nil
	}
}

func (x *steps) ready(ev broker.Event) {
	x.counts(ev.Mode, ev.Text)
	switch {
	case ev.Mode == broker.ModeTCP:
		x.giveBack(byServiceTCP)
	case x.drain():
		x.end()
		x.carry(x.n, byService)
	default:
		x.failed(unix.ECONNABORTED, "")
	}
}

// giveBack gives the program its TCP socket, which is connected, or waits for a
// call to do so. by says who carries the bytes of the pair if no call comes.
func (x *steps) giveBack(by carrier) {
	if !x.placed() {
		x.goNative()
		return
	}
	if x.n != nil {
		if x.swapBack(x.n) {
			x.release()
			x.goNative()
			return
		}
		x.dropGone() // interrupted, and perhaps restarted soon
	}
	switch {
	case !x.drain():
		x.failed(unix.ECONNABORTED, "")
	case x.n != nil:
		x.end()
		x.carry(x.n, by)
	default:
		x.stage = stageGive
		if by == byLauncher {
			x.stage = stageGiveOwn
		}
		x.watch()
		x.await(x.decide)
	}
}

// goNative ends an attempt whose TCP socket is in place.
func (x *steps) goNative() {
	e := syscall.Errno(0)
	if x.nonblock {
		e = unix.EINPROGRESS
	}
	x.end()
	x.native(x.n, e, x.begun)
}

// carryNow ends the wait for a call in stageGive, stageGiveOwn and stageJoin.
func (x *steps) carryNow() {
	if x.stage == stageJoin {
		x.notJoined(ReasonNotPlaced)
	}
	by := byServiceTCP
	if x.stage == stageGiveOwn {
		by = byLauncher
	}
	x.end()
	x.carry(x.n, by)
}

// failed reports e to the program and counts why.
func (x *steps) failed(e syscall.Errno, why string) {
	if why != "" {
		x.countsFailed(why)
	}
	x.disconnect()
	if x.placed() && x.n != nil {
		x.swapBack(x.n)
	}
	if x.fail(x.n, e) {
		x.end()
		return
	}
	x.n = nil
	x.stage = stageFailed
	x.await(failedTime)
}

// serviceGone is called when the service ended, or closed the connection.
func (x *steps) serviceGone() {
	switch {
	case x.stage == stageGive:
		x.stage = stageGiveOwn
	case x.stage == stageJoin:
		x.notJoined(ReasonNoService)
	case x.stage == stageWithdraw:
		x.stage = stageOrphan
		x.awaitServiceEnd()
	case x.connecting():
		x.counts(broker.ModeTCP, ReasonNoService)
		x.stage = stageOrphan
		x.await(0)
		x.awaitServiceEnd()
	}
}

// dead makes the connection again, over TCP, after the service has ended or given it up. The first
// connection, if the peer has it, is reset.
func (x *steps) dead() {
	x.disconnect()
	if x.placed() || x.n == nil {
		x.goOwn()
		return
	}
	x.end()
	x.leave(x.n)
}

// holdOver is called when the TCP connection takes long.
func (x *steps) holdOver() {
	if x.stage == stageTCP {
		x.stage = stageHeld
	}
	x.held()
}

// held places the pair with the call that waits. If the call is non-blocking,
// it is answered then.
func (x *steps) held() {
	if x.n == nil || x.stage >= stageGive {
		return
	}
	if !x.place(x.n, x.nonblock) { // it may be there already, and the answer was lost
		if x.duplicated() {
			x.withdraw()
		}
		x.dropGone()
		return
	}
	if x.nonblock {
		x.answerCall(unix.EINPROGRESS)
	}
}

// timedOut is called when the time of await is over.
func (x *steps) timedOut() {
	switch x.stage {
	case stageGive, stageGiveOwn, stageJoin:
		x.carryNow()
	case stageSwap:
		// The peer expects a CLC proposal on a socket that the program holds.
		x.cancel()
		x.failed(unix.ECONNABORTED, ReasonInterrupted)
	case stageFailed:
		x.end()
		x.retire()
	}
}

// pairChanged is called when the program closed the pair or wrote into it.
func (x *steps) pairChanged() {
	switch {
	case x.giving() && (!x.hungUp() || x.wrote()): // also written and closed
		x.carryNow()
	case x.stage < stageFailed:
		x.cancel()
		x.end()
		x.leave(nil)
	}
}

// giving reports whether the program has the pair, and only a call of it is missing.
func (x *steps) giving() bool {
	return x.stage == stageGive || x.stage == stageGiveOwn || x.stage == stageJoin
}

// programEnded is called when all programs have ended. What one of them wrote before it
// ended is still sent.
func (x *steps) programEnded() {
	if x.giving() && (!x.hungUp() || x.wrote()) {
		x.carryNow()
	}
}

// late is called when SO_SNDTIMEO of a blocking connect() is over.
func (x *steps) late() { x.answerCall(unix.EINPROGRESS) }

// dropGone drops the waiting call if it does not wait any more.
func (x *steps) dropGone() {
	if x.n != nil && !x.valid(x.n) {
		x.n = nil
	}
}

// answerCall ends the call that waits, if there is one.
func (x *steps) answerCall(e syscall.Errno) {
	if x.n == nil {
		return
	}
	ok := x.answer(x.n, e)
	x.n = nil
	x.begun = x.begun || ok && e == unix.EINPROGRESS
}

func (x *steps) end() { x.stage = stageOver }
