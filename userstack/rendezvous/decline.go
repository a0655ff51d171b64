// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"os"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// declining says how both sides decline. In the LLC part of a first contact the peer may
// decline at the same time. Then each finds the other's DECLINE where data would begin, and
// takes it out of the stream: TCP carries the data on both sides, whoever was first.
//
//	this side            | the peer                    | both continue with TCP because
//	---------------------+-----------------------------+------------------------------------
//	sends DECLINE        | reads it                    | it says so
//	reads DECLINE        | has sent it                 | it says so
//	sends DECLINE, finds | sends DECLINE, finds        | neither takes the other's for data
//	that of the peer     | that of this side           |
//
// The program must not get the stream while a DECLINE of the peer may be under way. The peer
// reads before it declines, so its DECLINE is sent before ours has arrived, and TCP delivers
// it before the acknowledgement of ours, unless its packet was lost: crossWait is for that. The
// wait ends with the first data of the peer.
var declining = []transition{
	{Declining, EvSent, to(AwaitAck, Over), (*Machine).declineSent},
	{AwaitAck, EvTCPState, to(AwaitAck, TakingDecline, Over), (*Machine).declineState},
	{TakingDecline, EvDecline, to(Over), func(m *Machine, _ time.Time, _ Event) { m.stayTCP(m.no.why) }},
}

// refused is what a machine knows of the DECLINE that it sends.
type refused struct {
	why     *Refusal
	cross   bool          // the peer may send DECLINE at the same time
	linger  time.Duration // how long a DECLINE of the peer may still come after ours was acknowledged
	ackWait time.Duration // how long the DECLINE may be under way
	sentAt  time.Time
	acked   time.Time // when TCP had acknowledged it, or zero
}

// crossWait is how long a DECLINE of the peer may still come after ours was acknowledged: TCP
// sends a lost packet again after 200 ms and a round trip, and what the acknowledgement of our
// DECLINE has taken is added twice.
const crossWait = 250 * time.Millisecond

// How long a DECLINE may be under way that may meet another one: ackWait at least, and until the
// peer may lose patience. Linux gives up a first contact after 3 s as a server and 5 s as a
// client, and then takes a DECLINE for data.
const (
	ackWait      = 500 * time.Millisecond
	peerPatience = 2500 * time.Millisecond
)

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
	held := m.server != nil && m.conf.Held && !m.no.cross
	if !m.no.cross && !held {
		m.stayTCP(m.no.why)
		return
	}
	if held {
		m.no.ackWait = MessageWait // the client waits no longer for an answer
	}
	m.no.sentAt = now
	m.enter(AwaitAck)
	m.do(WatchDecline{Rarely: held})
}

func (m *Machine) declineState(now time.Time, ev Event) {
	s := ev.(TCPState)
	if !s.Unacked && m.no.acked.IsZero() {
		m.no.acked = now
		if m.no.linger > 0 {
			m.no.linger += 2 * now.Sub(m.no.sentAt)
		}
	}
	h, err := wire.ParseHeader(s.First)
	switch {
	case err == nil && h.Type == wire.TypeDecline:
		m.await(TakingDecline, now.Add(MessageWait))
	case len(s.First) >= wire.HeaderLen, !m.no.acked.IsZero() && now.Sub(m.no.acked) >= m.no.linger:
		m.stayTCP(m.no.why)
	case m.no.acked.IsZero() && now.Sub(m.no.sentAt) >= m.no.ackWait:
		m.fail(fmt.Errorf("the peer did not acknowledge the DECLINE: %v: %w", m.no.why, os.ErrDeadlineExceeded))
	}
}
