// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"fmt"
	"time"

	"smcr/smc"
)

// abort resets the connection from this side.
func (p *Protocol) abort(err error) {
	if p.state == smc.StateClosed || aborting(p.state) {
		return
	}
	if errors.Is(err, ErrProtocol) {
		err = fmt.Errorf("%w: %w", ErrReset, err)
	}
	p.reset(err, smc.StatePeerAbortWait)
}

// peerGone resets the connection because the peer ended it.
func (p *Protocol) peerGone() {
	p.keepRest()
	p.abort(ErrReset)
}

// keepRest lets the program read what arrived before a reset by the peer, as TCP does. RFC
// 7609, section 4.8.2, purges it, and so loses the answer of a server that closes before it
// has read the whole request. The connection ends when the program has read the rest, or
// closes.
func (p *Protocol) keepRest() {
	if p.state == smc.StateClosed || aborting(p.state) || p.closing.prog == progClosed {
		return
	}
	p.in.kept = p.in.written > p.in.read
}

// dropRest ends what keepRest began.
func (p *Protocol) dropRest() {
	p.in.kept = false
	p.finish()
}

// peerAborted answers a reset by the peer.
func (p *Protocol) peerAborted() {
	if p.state == smc.StateClosed || aborting(p.state) {
		p.finish()
		return
	}
	p.keepRest()
	p.reset(ErrReset, smc.StateProcessAbort)
}

// reset drops what waits to be sent, and to be read unless it is kept, and sends A.
func (p *Protocol) reset(err error, to smc.ConnState) {
	p.err = err
	for _, t := range [...]*timer{&p.closing.tcp.timer, &p.peerMove.timer, &p.out.urgent.timer, &p.out.hold.timer} {
		t.stop()
	}
	p.out.placement.reset()
	p.peerMove.missing, p.deferred.there = false, false
	p.wakeAll()
	p.state = to
	p.start(&p.closing.timer, p.group.Now().Add(p.cfg.Timers.AbortWait))
	p.Transmit()
	p.finish()
}

// finish closes the connection if both sides are done with it.
func (p *Protocol) finish() bool {
	if p.state == smc.StateClosed {
		return true
	}
	if !p.closing.complete(p.state) || p.in.kept {
		return false
	}
	p.close(p.err, false)
	return true
}

// Evict ends a connection whose RMB element the peer has given up: no message may be
// sent and nothing be written. If this side has closed, that is the orderly end: the
// peer's last message is not processed yet.
func (p *Protocol) Evict() {
	if p.err == nil && p.CloseSent() {
		p.close(nil, false)
		return
	}
	p.End(ErrReset)
}

// End ends the connection without a message. err says why, if nothing else has ended
// it before.
func (p *Protocol) End(err error) {
	if p.err == nil {
		p.err = err
	}
	p.close(p.err, false)
}

// close ends the connection for good. peerMayWrite says that the peer may still
// write to the RMB element.
func (p *Protocol) close(err error, peerMayWrite bool) {
	if p.state == smc.StateClosed {
		return
	}
	announce := p.leave(peerMayWrite) && p.Established()
	if !announce {
		return // the handshake fails, and Discard follows
	}
	p.wakeAll()
	p.group.Closed(err)
}

// leave takes the connection out of the group. Its memory stays.
func (p *Protocol) leave(peerMayWrite bool) (announce bool) {
	p.state, p.in.kept = smc.StateClosed, false
	for _, t := range p.timers() {
		t.stop()
	}
	return p.group.Leave(peerMayWrite)
}

// Discard ends a connection whose handshake failed. Nothing is sent. The RMB element
// is not used before the given time, in case the peer thinks that the connection is
// open.
func (p *Protocol) Discard(notBefore time.Time) {
	p.mem = max(p.mem, memReleased)
	if p.state != smc.StateClosed {
		p.leave(false)
	}
	p.free(notBefore)
}

// Release says that the driver has no slice of the connection any more. The memory
// of the send buffer and of the RMB element is given back once no message is
// outstanding. It is called once, after [Group.Closed].
func (p *Protocol) Release() {
	p.mem = max(p.mem, memReleased)
	p.maybeFree()
}

func (p *Protocol) maybeFree() {
	if p.state == smc.StateClosed && p.mem == memReleased {
		p.free(time.Time{})
	}
}

// free gives the memory back unless a message is outstanding that may use it.
func (p *Protocol) free(notBefore time.Time) {
	if p.mem == memFreed || p.out.outstanding > 0 {
		return
	}
	p.mem = memFreed
	p.out.buf.freeAll(p.group)
	p.group.FreeElement(notBefore)
	p.in.mem = nil
}
