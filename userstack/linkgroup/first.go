// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"

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

// watchSend waits for the acknowledgement of what was just sent, during the first contact.
func (f *firstContact) watchSend() {
	if p := f.g.phase; p != phaseConfirm && p != phaseSecond || !f.g.timers[timerFirstSend].IsZero() {
		return
	}
	f.sentAt = f.g.now
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
		f.sentAt = l.lastAck
		f.g.timers.set(timerFirstSend, f.sentAt.Add(f.g.cfg.Timers.FirstSend))
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
