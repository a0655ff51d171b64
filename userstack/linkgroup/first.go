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
}

// open ends the first contact: data may be sent.
func (f *firstContact) open() {
	f.g.phase = phaseOpen
	f.g.timers.stop(timerFirst)
	f.g.log.Info("link group is open", "type", f.g.Type().String())
	f.g.actions.add(Action{Kind: ActFirstLink})
	for _, c := range f.g.connsSorted() {
		c.Protocol().Transmit()
	}
}
