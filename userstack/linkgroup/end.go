// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// opened reports whether the first contact of the group was completed.
func (e *ending) opened() bool {
	return e.g.phase == phaseOpen || e.g.phase > phaseOpen && e.from == phaseOpen
}

// begin enters a phase of the end. It reports the result of the first contact if the
// driver waits for it.
func (e *ending) begin(to phase, err error) {
	g := e.g
	if g.phase < phaseDying {
		e.from = g.phase
	}
	first := g.phase == phaseConfirm || g.phase == phaseSecond
	g.phase = to
	g.timers = timers{}
	g.llc.ex, g.rkeys.own, g.rkeys.peer = exchange{}, rkeyExchange{}, peerRKey{}
	if first {
		g.actions.add(Action{Kind: ActFirstLink, Err: e.firstErr(err)})
	}
}

// terminate sends DELETE LINK for all links and ends the group when that is
// delivered. From the client the message is only a request, but the client does not
// wait for the server's answer if no memory needs protection any more (RFC 7609,
// section 3.5.4).
func (e *ending) terminate(reason wire.DeleteLinkReason, err error) {
	if e.g.phase >= phaseDying {
		return
	}
	alone := e.g.links.best(nil) == nil
	e.err = err
	e.begin(phaseDying, err)
	e.endConns(fmt.Errorf("%w: %w", conn.ErrAborted, err))
	if alone {
		e.die(err)
		return
	}
	e.g.log.Info("link group ends", "reason", reason.String())
	orderly := reason != wire.DeleteLinkLostPath && reason != wire.DeleteLinkProtocolViolation
	e.msg = wire.DeleteLink{All: true, Orderly: orderly, Reason: reason}
	e.send()
}

// send sends DELETE LINK for all links, over one after the other while they
// fail or, on the client, the server does not comply (RFC 7609, appendix
// C.7.1).
func (e *ending) send() {
	e.via = e.g.links.leastUsed(func(l *Link) bool { return !e.tried[l.slot] })
	if e.via == nil {
		e.die(e.err)
		return
	}
	e.tried[e.via.slot] = true
	then := endOfGroup
	if e.g.cfg.Role == smc.Client {
		then = nothing // the server's DELETE LINK is the end
	}
	e.g.timers.set(timerDie, e.g.now.Add(e.g.cfg.Timers.Terminate))
	e.via.sendLLC(e.msg, then, nil)
}

// firstErr returns err, for a first contact that failed with it, with ErrNoFallback if
// DECLINE must not be sent any more. Either the peer may already use SMC-R (RFC 7609,
// appendix C.3), or it has not answered in time; after a failure it would have sent
// DECLINE (appendix C.7).
func (e *ending) firstErr(err error) error {
	if e.g.first.committed || errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w: %w", ErrNoFallback, err)
	}
	return err
}

// endConns resets all connections without a message.
func (e *ending) endConns(err error) {
	for _, c := range e.g.connsSorted() {
		c.setReady(err)
		c.Protocol().End(err)
	}
}

// silent reports whether a link has failed with err because nothing came from the peer: the
// transport has given up, or TEST LINK was not answered.
func silent(err error) bool {
	var failed *rdmaverbs.CompletionError
	return errors.As(err, &failed) && failed.Status == rdmaverbs.StatusRetryExcErr || errors.Is(err, ErrTimeout)
}

// undisturbed reports whether a connection of the group has not begun to end, nor its TCP
// connection.
func (e *ending) undisturbed() bool {
	for _, c := range e.g.conns {
		if c.Protocol().Undisturbed() {
			return true
		}
	}
	return false
}

// die releases everything and tells the driver.
func (e *ending) die(err error) {
	if e.g.phase == phaseDead {
		return
	}
	if err == nil {
		err = ErrTerminated
	}
	if e.g.phase == phaseOpen && silent(err) && e.undisturbed() {
		err = fmt.Errorf("%w: %w", ErrPathDied, err)
	}
	e.begin(phaseDead, err)
	e.g.rmbs.closed = true
	for _, l := range e.g.links.list {
		l.state = smc.LinkInactive
		l.closeQP()
	}
	cause := err
	if !errors.Is(err, conn.ErrReset) {
		cause = fmt.Errorf("%w: %w", conn.ErrReset, err)
	}
	e.endConns(cause)
	for _, l := range e.g.links.list {
		e.g.rmbs.deregister(l)
	}
	e.g.links.list = nil
	for _, r := range append([]*rmb(nil), e.g.rmbs.list...) {
		if r.inUse == 0 {
			e.g.rmbs.free(r)
		}
	}
	e.g.peerRMBs.list, e.g.peerRMBs.removed = nil, nil
	e.g.actions.add(Action{Kind: ActGroupDead, Err: err})
}
