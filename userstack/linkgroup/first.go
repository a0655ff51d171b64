// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// connect takes the queue pair of l to RTR.
func (f *firstContact) connect(l *Link, peer Endpoint) error {
	l.peer = peer
	if err := f.g.env.ConnectQP(l, peer, min(l.local.MTU, peer.MTU)); err != nil {
		return fmt.Errorf("linkgroup: connect queue pair %s: %w", l.local.QPN, err)
	}
	return nil
}

func (f *firstContact) sendConfirmLink(l *Link, reply bool) {
	l.sendLLC(wire.ConfirmLink{
		Reply: reply, NoEyecatcher: !f.g.eye, MAC: l.local.MAC, GID: l.local.GID, QPN: l.local.QPN,
		LinkNum: l.id, LinkUserID: l.uid, MaxLinks: uint8(f.g.links.max), MaxConns: uint8(min(f.g.cfg.MaxConns, 255)),
	}, nothing, nil)
	f.watchSend()
}

// provePath writes as many zeros as fit in one packet to the end of the peer's RMBE, before
// the message that is sent next. The message is delivered only after the write, so CONFIRM
// LINK also proves that packets of the full path MTU pass, in both directions. The element
// is not in use yet, and all of it is zero: nobody can see the write. The zeros are those at
// the end of the local RMBE.
//
// A server has registered its RMB before it sends CONFIRM LINK. But a client of Linux registers
// its own only when it has got that, and an earlier write would end the link. So a server writes
// only to a stack of this module, which alone tells its UDP port (see wire.VendorOUI). If the
// client is such a stack, its own write finds a small MTU in version 1, too.
func (f *firstContact) provePath(l *Link) {
	p := &f.named
	if !f.g.cfg.ProvePath || p.Index == 0 || f.g.cfg.Role == smc.Server && l.peer.UDPPort == 0 {
		return
	}
	for _, c := range f.g.conns { // there is one at most
		n := min(l.local.MTU, l.peer.MTU).Bytes()
		mem := c.rmb.mem[c.elem*c.rmb.size:][:c.rmb.size]
		end := p.VAddr + uint64(p.SizeCode.Bytes())*uint64(p.Index)
		f.g.actions.add(Action{
			Kind: ActWrite, Link: l, Chunk: &conn.Chunk{Mem: mem, Data: RMBPart{c.rmb.handle, c.elem * c.rmb.size}},
			Off: len(mem) - n, Len: n, RemoteAddr: end - uint64(n), RKey: p.RKey, Token: l.push(1).token,
		})
	}
}

// Pace sets how long the first contact of g waits, see Timers.FirstSend and Timers.FirstAnswer. It
// is called before [Group.ConnectFirst].
func Pace(g *Group, send, answer time.Duration) {
	g.cfg.Timers.FirstSend, g.cfg.Timers.FirstAnswer = send, answer
}

// firstGrace is how much longer the first contact waits for an acknowledgement that may have
// come in time: this process may have stood still, and its timer fired first.
const firstGrace = 20 * time.Millisecond

// watchSend waits for the acknowledgement of what was just sent, during the first contact.
func (f *firstContact) watchSend() {
	if p := f.g.phase; p != phaseConfirm && p != phaseSecond || !f.g.timers[timerFirstSend].IsZero() {
		return
	}
	f.watchFrom(f.g.now)
}

// watchFrom begins the wait of watchSend at a time.
func (f *firstContact) watchFrom(at time.Time) {
	f.sentAt, f.late = at, false
	f.g.timers.set(timerFirstSend, f.sentAt.Add(f.g.cfg.Timers.FirstSend))
}

// sendTimeout acts if nothing was acknowledged on the first link for the time FirstSend. The
// queue pair itself may wait much longer. The error is not ErrTimeout, because DECLINE
// may still be sent (see ending.firstErr).
func (f *firstContact) sendTimeout() {
	if p := f.g.phase; p != phaseConfirm && p != phaseSecond || len(f.g.links.list) == 0 {
		return
	}
	l := f.g.links.list[0]
	switch {
	case l.sqLen == 0: // all was acknowledged
	case l.lastAck.After(f.sentAt):
		f.watchFrom(l.lastAck)
	case !f.late:
		f.late = true
		f.g.timers.set(timerFirstSend, f.g.now.Add(firstGrace))
	default:
		f.g.change.fail(l, wire.DeleteLinkLostPath, fmt.Errorf("%w: link %d", ErrSilent, l.id))
	}
}

// open ends the first contact: data may be sent.
func (f *firstContact) open() {
	f.g.phase = phaseOpen
	f.g.timers.stop(timerFirst)
	f.g.timers.stop(timerFirstSend)
	f.g.log.Info("link group is open", "type", f.g.Type().String())
	f.g.actions.add(Action{Kind: ActFirstLink})
	for _, c := range f.g.connsSorted() {
		c.Protocol().Transmit()
	}
}
