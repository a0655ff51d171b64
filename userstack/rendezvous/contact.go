// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"time"

	"smcr/smc"
)

// survey asks what this host can offer the peer.
func (m *Machine) survey(peer smc.GID) {
	m.enter(Surveying)
	m.do(Survey{PeerGID: peer})
}

// learn takes what this host can offer.
func (m *Machine) learn(h Host) {
	m.host = h
	if h.PeerID != (smc.PeerID{}) {
		m.peerID = h.PeerID
	}
}

// join looks for an existing link group.
func (m *Machine) join(j JoinGroup) {
	m.enter(Joining)
	m.do(j)
}

// awaitRKey waits until the peer knows the RMB of the connection (RFC 7609, sections
// 3.5.2.1 and 3.5.2.2).
func (m *Machine) awaitRKey(now time.Time, _ Event) {
	m.made = madeConn
	m.await(AwaitRKey, now.Add(LLCWait))
	m.do(AwaitLLC{})
}

// noRKey is the end of a wait for CONFIRM RKEY that the link group has not ended.
func (m *Machine) noRKey(now time.Time, _ Event) {
	m.decline(refuse(smc.DiagInternal, "no outcome of an LLC exchange"))
}

// makeGroup begins a first contact.
func (m *Machine) makeGroup(g MakeGroup) {
	m.made = madeGroup
	m.enter(MakingGroup)
	m.do(g)
}
