// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// declining says how both sides decline. In the LLC part of a first contact the peer may
// decline at the same time: each would then take the other's DECLINE for data. So TCP is
// used only if the peer's TCP acknowledges the DECLINE soon, and none comes from the peer
// for as long as one may be under way.
var declining = []transition{
	{Declining, EvSent, to(AwaitAck, Over), (*Machine).declineSent},
	{AwaitAck, EvTCPState, to(AwaitAck, Over), (*Machine).declineState},
}

// ackWait is how long a DECLINE that may meet another one may be under way.
const ackWait = 500 * time.Millisecond

// declineFailure declines because this host cannot do something.
func (m *Machine) declineFailure(now time.Time, ev Event) {
	var why Refusal
	switch ev := ev.(type) {
	case Failed:
		why = ev.Why
	case LLCFailed:
		why = ev.Why
	}
	m.decline(&why)
}

// decline gives back what was made and tells the peer that the connection continues as
// TCP.
func (m *Machine) decline(why *Refusal) {
	m.giveBack()
	m.declined = why
	m.send(Declining, m.version.decline(wire.Decline{PeerID: m.peerID, Diagnosis: why.Code, OutOfSync: why.Code == smc.DiagSync}))
}

func (m *Machine) declineSent(now time.Time, _ Event) {
	if !m.cross {
		m.stayTCP(m.declined)
		return
	}
	m.sentAt = now
	m.enter(AwaitAck)
	m.do(WatchDecline{})
}

func (m *Machine) declineState(now time.Time, ev Event) {
	s := ev.(TCPState)
	h, err := wire.ParseHeader(s.First)
	switch took := now.Sub(m.sentAt); {
	case err == nil && h.Type == wire.TypeDecline:
		m.fail(fmt.Errorf("both sides declined: %v", m.declined))
	case len(s.First) >= wire.HeaderLen, !s.Unacked && took >= m.linger:
		m.stayTCP(m.declined)
	case s.Unacked && took >= ackWait:
		m.fail(fmt.Errorf("the peer did not acknowledge the DECLINE: %v", m.declined))
	}
}
