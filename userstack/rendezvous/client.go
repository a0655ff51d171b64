// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// clientTable says what a client does (RFC 7609, sections 3.5.1 and 3.5.2). anyState
// tells what events do that are not in it.
var clientTable = newTable(&anyState, []transition{
	// What this host has, and PROPOSAL.
	{Preparing, EvPrepared, to(Surveying), func(m *Machine, _ time.Time, _ Event) { m.survey(smc.GID{}) }},
	{Preparing, EvFailed, to(Over), (*Machine).broken},
	{Surveying, EvSurveyed, to(Proposing, LettingGo, Declining), asClient((*client).propose)},
	{Surveying, EvFailed, to(LettingGo, Declining), asClient((*client).nothingToOffer)},
	{Proposing, EvSent, to(AwaitAccept), func(m *Machine, now time.Time, _ Event) { m.await(AwaitAccept, now.Add(MessageWait)) }},
	{AwaitAccept, EvAccept, to(LettingGo, FindingPath, MakingGroup, Joining, Declining, Over), asClient((*client).accepted)},
	{AwaitAccept, EvDecline, to(LettingGo, Over), asClient((*client).declined)},
	{LettingGo, EvLetGone, to(FindingPath, MakingGroup, Joining, Declining, Over), asClient((*client).wasLetGo)},
	{LettingGo, EvFailed, to(Over), (*Machine).broken},
	{LettingGo, EvDeadline, to(Over), asClient((*client).notLetGo)},
	{FindingPath, EvPathFound, to(MakingGroup, Declining), asClient((*client).pathFound)},
	{FindingPath, EvFailed, to(Declining), (*Machine).declineFailure},
	// Subsequent contact: CONFIRM is the last message of the client.
	{Joining, EvJoined, to(AwaitRKey), (*Machine).awaitRKey},
	{Joining, EvNoGroup, to(Declining), asClient((*client).outOfSync)},
	{Joining, EvFailed, to(Declining), (*Machine).declineFailure},
	{AwaitRKey, EvLLCDone, to(Attaching), asClient((*client).attachNext)},
	{AwaitRKey, EvLLCFailed, to(Declining), (*Machine).declineFailure},
	{AwaitRKey, EvDeadline, to(Declining), (*Machine).noRKey},
	{Attaching, EvAttached, to(Confirming), asClient((*client).confirmNext)},
	{Attaching, EvFailed, to(Declining), (*Machine).declineFailure},
	{Confirming, EvSent, to(Over), (*Machine).attached},
	// First contact: CONFIRM LINK follows.
	{MakingGroup, EvGroupMade, to(ConfirmingFirst), asClient((*client).confirmFirst)},
	{MakingGroup, EvFailed, to(Declining, Over), asLLCPhase((*llcPhase).groupFailed)},
	{ConfirmingFirst, EvSent, to(AwaitLink), asClient((*client).clientConfirmed)},
}, firstContactTable, declining)

// How long a machine waits for the peer's DECLINE after CONFIRM LINK has failed.
const (
	// declineWait is for a client: the server declines at once, and one DECLINE is enough.
	declineWait = 100 * time.Millisecond
	// readWait is for a DECLINE that has arrived already.
	readWait = 10 * time.Millisecond
	// lateDecline is for a side that must not decline any more itself.
	lateDecline = 2 * time.Second
)

// client is the part of a machine that only a client has.
type client struct {
	*Machine
	offers [2]version // what PROPOSAL offers, version 1 and 2; nil what it does not
	then   func()     // LettingGo: what follows
}

// NewClient returns the machine of a client. Its first actions are there.
func NewClient(c Config) *Machine {
	m := newMachine(clientTable, c)
	m.client = &client{Machine: m}
	m.enter(Preparing)
	m.do(Prepare{})
	return m
}

// propose sends PROPOSAL with all versions that the host can use.
func (m *client) propose(now time.Time, ev Event) {
	m.learn(ev.(Surveyed).Host)
	// The area for future growth makes it the layout that Linux and tshark read.
	p := wire.Proposal{PeerID: m.peerID, Growth: make([]byte, wire.ProposalGrowthLinux)}
	var no [2]*Refusal
	for i, v := range []version{&version1{}, &version2{hostname: m.conf.Hostname}} {
		if no[i] = v.propose(&p, &m.host); no[i] == nil {
			m.offers[i] = v
		}
	}
	if m.offers == [2]version{} {
		m.letGo(now, func() { m.decline(no[0]) })
		return
	}
	m.send(Proposing, p)
}

// nothingToOffer declines in place of PROPOSAL.
func (m *client) nothingToOffer(now time.Time, ev Event) {
	m.letGo(now, func() { m.declineFailure(now, ev) })
}

// accepted takes ACCEPT.
func (m *client) accepted(now time.Time, ev Event) {
	a := answerOf(ev.(message).m)
	v := m.offers[a.version-1]
	if v == nil {
		m.unexpected(now, ev)
		return
	}
	m.answer, m.version = a, v
	m.letGo(now, m.consider)
}

// declined takes DECLINE in place of ACCEPT.
func (m *client) declined(now time.Time, ev Event) {
	m.letGo(now, func() { m.peerDeclined(now, ev) })
}

// consider says what follows from ACCEPT.
func (m *client) consider() {
	a, v := m.answer, m.version
	askPath, no := v.accepted(a)
	switch {
	case no != nil:
		m.decline(no)
	case askPath:
		m.enter(FindingPath)
		m.do(FindPath{Local: v.terms().Local.Addr(), PeerGID: a.GID})
	default:
		m.contact()
	}
}

// pathFound takes whether a router is on the way to the server.
func (m *client) pathFound(now time.Time, ev Event) {
	if no := m.version.path(m.answer, ev.(PathFound).Routed); no != nil {
		m.decline(no)
		return
	}
	m.contact()
}

// contact begins the first or the subsequent contact that ACCEPT says.
func (m *client) contact() {
	a := m.answer
	if a.first {
		m.makeGroup(MakeGroup{Terms: m.version.terms(), PeerID: a.PeerID, Peer: &a.Endpoint})
		return
	}
	m.join(JoinGroup{Terms: m.version.terms(), PeerID: a.PeerID, GID: a.GID, MAC: a.MAC, Peer: &a.Endpoint})
}

// outOfSync declines an ACCEPT that names a link which this host does not have (RFC
// 7609, appendix C.4).
func (m *client) outOfSync(now time.Time, _ Event) {
	m.decline(refuse(smc.DiagSync, "no link group with peer %s, queue pair %s", m.answer.PeerID, m.answer.QPN))
}

// attachNext attaches the connection before CONFIRM is sent: that moves it to the link
// which ACCEPT names, and CONFIRM has the RToken of that link.
func (m *client) attachNext(time.Time, Event) {
	m.enter(Attaching)
	m.do(Attach{m.answer.Endpoint})
}

func (m *client) confirmNext(_ time.Time, ev Event) {
	m.made = madeAttached
	m.send(Confirming, m.version.confirm(ev.(Attached).Local))
}

func (m *client) confirmFirst(_ time.Time, ev Event) {
	made := ev.(GroupMade)
	made.Local.MTU = min(made.Local.MTU, m.answer.MTU)
	m.send(ConfirmingFirst, m.version.confirmFirst(made))
}

func (m *client) clientConfirmed(now time.Time, _ Event) {
	m.llc.awaitLink(now)
}
