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

// refused is what a machine knows of the DECLINE that it sends.
type refused struct {
	why    *Refusal
	cross  bool          // the peer may send DECLINE at the same time
	linger time.Duration // how long after that a DECLINE of the peer may still come
	sentAt time.Time
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
	m.no.why = why
	m.send(Declining, m.version.decline(wire.Decline{PeerID: m.peerID, Diagnosis: why.Code, OutOfSync: why.Code == smc.DiagSync}))
}

func (m *Machine) declineSent(now time.Time, _ Event) {
	if !m.no.cross {
		m.stayTCP(m.no.why)
		return
	}
	m.no.sentAt = now
	m.enter(AwaitAck)
	m.do(WatchDecline{})
}

func (m *Machine) declineState(now time.Time, ev Event) {
	s := ev.(TCPState)
	h, err := wire.ParseHeader(s.First)
	switch took := now.Sub(m.no.sentAt); {
	case err == nil && h.Type == wire.TypeDecline:
		m.fail(fmt.Errorf("both sides declined: %v", m.no.why))
	case len(s.First) >= wire.HeaderLen, !s.Unacked && took >= m.no.linger:
		m.stayTCP(m.no.why)
	case s.Unacked && took >= ackWait:
		m.fail(fmt.Errorf("the peer did not acknowledge the DECLINE: %v", m.no.why))
	}
}
