// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"time"
)

// firstContactTable says what both sides do from CONFIRM on in a first contact: while the
// first link is confirmed over RoCE, either side may decline over TCP (RFC 7609, section
// 3.5.1.6.4 and appendix C.2).
var firstContactTable = []transition{
	{AwaitLink, EvLLCDone, to(Draining, AttachingFirst), asLLCPhase((*llcPhase).linkConfirmed)},
	{AwaitLink, EvLLCFailed, to(AwaitDecline, Declining, Over), asLLCPhase((*llcPhase).linkFailed)},
	{AwaitLink, EvDecline, to(Over), (*Machine).peerDeclined},
	{AwaitLink, EvEOF, to(AwaitLink), asLLCPhase((*llcPhase).peerClosed)},
	{AwaitLink, EvReadFailed, to(Declining), asLLCPhase((*llcPhase).readFailed)},
	{AwaitDecline, EvDecline, to(Over), (*Machine).peerDeclined},
	{AwaitDecline, EvEOF, to(Declining, Over), asLLCPhase((*llcPhase).noDecline)},
	{AwaitDecline, EvReadFailed, to(Declining, Over), asLLCPhase((*llcPhase).noDecline)},
	{AwaitDecline, EvDeadline, to(Draining), func(m *Machine, _ time.Time, _ Event) { m.llc.drain() }},
	{Draining, EvDecline, to(Over), (*Machine).peerDeclined},
	{Draining, EvReadStopped, to(AttachingFirst, AwaitDecline, Declining, Over), asLLCPhase((*llcPhase).drained)},
	{AttachingFirst, EvAttached, to(Over), (*Machine).attached},
	{AttachingFirst, EvFailed, to(Over), asLLCPhase((*llcPhase).tooLate)},
}

// llcPhase is the part of a machine that a first contact needs from CONFIRM on.
type llcPhase struct {
	*Machine
	failure *Failure  // why the first contact fails, until Draining is over
	began   time.Time // when CONFIRM was sent or taken, so that the peer may decline; zero before
	parted  bool      // a part of a DECLINE had come when failure was to be told
}

// groupFailed abandons a first contact whose link group cannot be made or connected.
func (m *llcPhase) groupFailed(now time.Time, ev Event) { m.abandon(now, ev.(Failed).Failure) }

// awaitLink waits for the outcome of CONFIRM LINK, which the link group bounds by its
// own timers, and for a DECLINE.
func (m *llcPhase) awaitLink(now time.Time) {
	if m.client != nil {
		m.began = now
	}
	m.enter(AwaitLink)
	m.do(AwaitLLC{})
}

// peerClosed goes on without TCP. The end of the TCP stream is no answer: a peer that
// has finished CONFIRM LINK first may have sent its data over SMC-R, and closed, before
// the last message of CONFIRM LINK is processed here.
func (m *llcPhase) peerClosed(time.Time, Event) { m.ended = true }

func (m *llcPhase) linkConfirmed(now time.Time, _ Event) {
	if m.ended {
		m.attachFirst()
		return
	}
	m.drain()
}

func (m *llcPhase) linkFailed(now time.Time, ev Event) {
	f := ev.(LLCFailed).Failure
	if m.ended {
		m.abandon(now, f)
		return
	}
	m.failure = &f
	wait := readWait
	switch {
	case f.NoFallback:
		if wait = LateGrace; m.client == nil {
			wait += lateDecline // the client may still decline
		}
	case m.client != nil:
		wait = declineWait
	}
	m.await(AwaitDecline, now.Add(wait))
}

// readFailed abandons a first contact whose TCP connection has failed.
func (m *llcPhase) readFailed(now time.Time, ev Event) {
	m.abandon(now, Failure{Why: internal(ev.(ReadFailed).Err)})
}

func (m *llcPhase) noDecline(now time.Time, _ Event) { m.abandon(now, *m.failure) }

// drain takes what the peer has sent until now: it may be a DECLINE.
func (m *llcPhase) drain() {
	m.enter(Draining)
	m.do(StopReading{})
}

func (m *llcPhase) drained(now time.Time, ev Event) {
	switch {
	case len(m.part) > 0 && m.failure != nil && !m.parted:
		// The rest of the peer's DECLINE is on its way.
		m.parted = true
		m.await(AwaitDecline, now.Add(MessageWait))
	case len(m.part) > 0:
		m.fail(fmt.Errorf("%w: a part of a CLC message, and then SMC-R", ErrProtocol))
	case m.failure != nil:
		m.abandon(now, *m.failure)
	default:
		m.attachFirst()
	}
}

func (m *llcPhase) attachFirst() {
	m.enter(AttachingFirst)
	m.do(Attach{m.answer.Endpoint})
}

// tooLate is the end where the peer uses SMC-R already, and this host cannot.
func (m *llcPhase) tooLate(_ time.Time, ev Event) {
	f := ev.(Failed)
	m.fail(fmt.Errorf("%w: %v", ErrTooLate, f.err()))
}

// abandon ends the link group of a first contact that has failed, and declines if it is
// not too late for that. The peer may decline at the same time: see declining.
func (m *llcPhase) abandon(now time.Time, f Failure) {
	m.giveBack()
	if f.NoFallback {
		m.fail(fmt.Errorf("%w: %v", ErrTooLate, f.err()))
		return
	}
	m.no.cross, m.no.ackWait = true, ackWait
	if !m.began.IsZero() {
		m.no.linger = crossWait
		m.no.ackWait = max(ackWait, peerPatience-now.Sub(m.began))
	}
	m.decline(&f.Why)
}
