// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// serverTable says what a server does (RFC 7609, sections 3.5.1 and 3.5.2). anyState
// tells what events do that are not in it.
var serverTable = newTable(&anyState, []transition{
	// Where only the first bytes tell whether the peer speaks CLC.
	{Looking, EvFirstBytes, to(Looking, Preparing, Over), asServer((*server).looked)},
	{Looking, EvEOF, to(Over), asServer((*server).noCLC)},
	{Looking, EvReadFailed, to(Over), asServer((*server).lookFailed)},
	{Looking, EvDeadline, to(Over), asServer((*server).nothingSeen)},
	// PROPOSAL, and what this host has.
	{Preparing, EvPrepared, to(AwaitProposal), asServer((*server).prepared)},
	{Preparing, EvFailed, to(Over), (*Machine).broken},
	{AwaitProposal, EvProposal, to(Admitting), asServer((*server).proposed)},
	{AwaitProposal, EvDecline, to(Over), (*Machine).peerDeclined},
	{Admitting, EvAdmitted, to(Surveying, Declining), asServer((*server).admitted)},
	{Admitting, EvFailed, to(Declining), (*Machine).declineFailure},
	{Surveying, EvSurveyed, to(Joining, Declining), asServer((*server).choose)},
	{Surveying, EvFailed, to(Declining), (*Machine).declineFailure},
	// Subsequent contact: ACCEPT is the last message of the server.
	{Joining, EvJoined, to(AwaitRKey), asServer((*server).joined)},
	{Joining, EvNoGroup, to(Queueing, MakingGroup), asServer((*server).noGroup)},
	{AwaitRKey, EvLLCDone, to(Accepting), asServer((*server).acceptNext)},
	{AwaitRKey, EvLLCFailed, to(Declining), (*Machine).declineFailure},
	{AwaitRKey, EvDeadline, to(Declining), (*Machine).noRKey},
	{Accepting, EvSent, to(AwaitConfirm), func(m *Machine, now time.Time, _ Event) { m.await(AwaitConfirm, now.Add(m.conf.ConfirmWait)) }},
	{AwaitConfirm, EvConfirm, to(Attaching, Over), asServer((*server).confirmedNext)},
	{AwaitConfirm, EvDecline, to(Over), asServer((*server).declinedNext)},
	{AwaitConfirm, EvCanceled, to(AwaitConfirm), asServer((*server).canceledLate)},
	{Attaching, EvAttached, to(Over), (*Machine).attached},
	{Attaching, EvFailed, to(Over), asServer((*server).attachFailed)},
	{Attaching, EvCanceled, to(Over), asServer((*server).refuseUnwanted)},
	{Attaching, EvClosed, to(Over), asServer((*server).refuseUnwanted)},
	// First contact: CONFIRM LINK follows.
	{Queueing, EvTurn, to(Joining), asServer((*server).myTurn)},
	{Queueing, EvFailed, to(Declining), (*Machine).declineFailure},
	{Queueing, EvDeadline, to(Declining), asServer((*server).noTurn)},
	{MakingGroup, EvGroupMade, to(AcceptingFirst), asServer((*server).acceptFirst)},
	{MakingGroup, EvFailed, to(Declining, Over), asLLCPhase((*llcPhase).groupFailed)},
	{AcceptingFirst, EvSent, to(AwaitFirstConfirm), func(m *Machine, now time.Time, _ Event) { m.await(AwaitFirstConfirm, now.Add(MessageWait)) }},
	{AwaitFirstConfirm, EvConfirm, to(ConnectingFirst, Declining, Over), asServer((*server).confirmedFirst)},
	{AwaitFirstConfirm, EvDecline, to(Over), asServer((*server).declinedFirst)},
	{ConnectingFirst, EvConnected, to(AwaitLink), func(m *Machine, now time.Time, _ Event) { m.llc.awaitLink(now) }},
	{ConnectingFirst, EvFailed, to(Declining, Over), asLLCPhase((*llcPhase).groupFailed)},
}, firstContactTable, declining)

// server is the part of a machine that only a server has.
type server struct {
	*Machine
	proposal    wire.Proposal
	local       wire.Endpoint // this end of the connection, as ACCEPT names it
	hasTurn     bool          // no other first contact with the client is under way
	unwanted    error         // why nobody wants the connection any more, though the client may use SMC-R
	headerBegun bool          // Looking: a part of a CLC header has come
	until       time.Time     // with Look: when PROPOSAL must be there
}

// NewServer returns the machine of a server, which begins at now. Its first actions are
// there.
func NewServer(now time.Time, c Config) *Machine {
	m := newMachine(serverTable, c)
	m.server = &server{Machine: m}
	if !c.Look {
		m.prepare()
		return m
	}
	m.server.until = now.Add(MessageWait)
	m.await(Looking, m.server.until)
	m.do(Look{})
	return m
}

func (m *Machine) prepare() {
	m.enter(Preparing)
	m.do(Prepare{})
}

// prepared waits for PROPOSAL. That its header was seen gives the peer no more time.
func (m *server) prepared(now time.Time, _ Event) {
	if !m.conf.Look {
		m.until = now.Add(cmp.Or(m.conf.ProposalWait, MessageWait))
	}
	m.await(AwaitProposal, m.until)
}

// looked takes the first bytes of the peer.
func (m *server) looked(now time.Time, ev Event) {
	b := ev.(FirstBytes).Bytes
	if len(b) < wire.HeaderLen {
		if !m.headerBegun { // the rest of a header is on its way
			m.headerBegun, m.deadline = true, now.Add(HeaderWait)
		}
		return
	}
	if _, err := wire.ParseHeader(b[:wire.HeaderLen]); err != nil {
		m.noCLC(now, ev)
		return
	}
	m.prepare()
}

// nothingSeen is the end of the wait for the first bytes.
func (m *server) nothingSeen(now time.Time, ev Event) {
	if m.conf.OptionSeen && !m.headerBegun {
		m.fail(fmt.Errorf("no PROPOSAL within %v: %w", MessageWait, os.ErrDeadlineExceeded))
		return
	}
	m.noCLC(now, ev)
}

// lookFailed is the end of TCP before the first bytes. The program of a client that announced
// SMC may not have been let go yet.
func (m *server) lookFailed(now time.Time, ev Event) {
	if m.conf.OptionSeen {
		m.tcpEnded(now, ev)
		return
	}
	m.noCLC(now, ev)
}

// noCLC is the end with a peer that does not speak CLC.
func (m *server) noCLC(time.Time, Event) {
	why := m.conf.NotCLC
	m.stayTCP(&why)
}

// proposed takes PROPOSAL.
func (m *server) proposed(now time.Time, ev Event) {
	m.proposal = ev.(message).m.(wire.Proposal)
	m.enter(Admitting)
	m.do(Admit{})
}

// declineInKind makes DECLINE one of version 2 if the client does not offer version 1.
func (m *server) declineInKind() {
	if !m.proposal.TypeV1.HasR() {
		m.version = &version2{}
	}
}

// admitted asks what this host can offer, if the client offers SMC-R.
func (m *server) admitted(now time.Time, _ Event) {
	p := &m.proposal
	if !p.TypeV1.HasR() && !offersVersion2(p) {
		m.decline(refuse(smc.DiagModeMismatch, "proposal offers %s", p.TypeV1))
		return
	}
	m.declineInKind()
	var gid smc.GID
	if o, err := p.Offer(); err == nil && offersVersion2(p) {
		gid = o.GID
	}
	m.survey(gid)
}

// choose takes the latest version that both can use.
func (m *server) choose(now time.Time, ev Event) {
	m.learn(ev.(Surveyed).Host)
	p := &m.proposal
	if offersVersion2(p) {
		v := &version2{hostname: m.conf.Hostname}
		no := v.choose(p, &m.host)
		switch {
		case no == nil:
			m.version = v
			m.findGroup()
			return
		case !p.TypeV1.HasR():
			m.decline(no)
			return
		}
		m.do(Version1{p.PeerID, *no})
	}
	v := &version1{}
	if no := v.choose(p, &m.host); no != nil {
		m.decline(no)
		return
	}
	m.findGroup()
}

// findGroup looks for an existing link group. That comes before the wait for a turn, so
// that a first contact of the client that does not go on delays nobody who needs none.
func (m *server) findGroup() {
	gid, mac := m.version.port(&m.proposal)
	m.join(JoinGroup{Terms: m.version.terms(), PeerID: m.proposal.PeerID, GID: gid, MAC: mac})
}

func (m *server) joined(now time.Time, ev Event) {
	m.do(EndTurn{})
	m.awaitRKey(now, ev)
}

// noGroup makes a link group if no other first contact with the client is under way, and
// else waits for the end of that one: connections that arrive together share one link
// group.
func (m *server) noGroup(now time.Time, _ Event) {
	if m.hasTurn {
		m.makeGroup(MakeGroup{Terms: m.version.terms(), PeerID: m.proposal.PeerID})
		return
	}
	gid, _ := m.version.port(&m.proposal)
	if m.version.terms() == nil {
		gid = smc.GID{}
	}
	m.await(Queueing, now.Add(TurnWait))
	m.do(AwaitTurn{PeerID: m.proposal.PeerID, GID: gid, Terms: m.version.terms()})
}

// myTurn looks again for a link group: another first contact may have made one.
func (m *server) myTurn(_ time.Time, ev Event) {
	m.peerID, m.hasTurn = ev.(Turn).PeerID, true
	m.findGroup()
}

// noTurn declines while the client still waits for an answer.
func (m *server) noTurn(time.Time, Event) {
	m.decline(refuse(smc.DiagTimeoutConfLink, "another first contact with the client has not ended within %v", TurnWait))
}

// acceptNext sends ACCEPT. The client may use SMC-R as soon as it has sent CONFIRM, and
// Linux then takes no notice of TCP any more. So if nobody wants the connection any
// more, it has to be refused on the link group, for which CONFIRM is needed:
// canceledLate.
func (m *server) acceptNext(_ time.Time, ev Event) {
	m.local = ev.(LLCDone).Local
	m.send(Accepting, m.version.accept(m.local))
}

// canceledLate remembers that nobody wants the connection.
func (m *server) canceledLate(_ time.Time, ev Event) { m.unwanted = cause(ev) }

// takeConfirm takes CONFIRM, and reports whether it has the version of ACCEPT.
func (m *server) takeConfirm(now time.Time, ev Event) bool {
	m.answer = answerOf(ev.(message).m)
	if m.answer.version != m.version.number() {
		m.unexpected(now, ev)
		return false
	}
	return true
}

func (m *server) confirmedNext(now time.Time, ev Event) {
	switch {
	case !m.takeConfirm(now, ev):
	case m.unwanted != nil:
		m.refuseConn(m.unwanted)
	default:
		m.enter(Attaching)
		m.do(Attach{m.answer.Endpoint})
	}
}

// attachFailed ends a connection that the client uses already. What another host says is
// no reason to tell the peer anything.
func (m *server) attachFailed(now time.Time, ev Event) {
	if f := ev.(Failed); !f.NotOwner {
		m.refuseConn(f.err())
		return
	}
	m.llc.tooLate(now, ev)
}

func (m *server) refuseUnwanted(_ time.Time, ev Event) { m.refuseConn(cause(ev)) }

// refuseConn resets a connection that the client uses already.
func (m *server) refuseConn(why error) {
	m.do(RefuseConn{m.answer.Endpoint})
	m.fail(fmt.Errorf("%w: %v", ErrTooLate, why))
}

// refusalOf returns what the client says with DECLINE in place of CONFIRM. Out of sync,
// it does not have the link group of ACCEPT any more (RFC 7609, appendix A.2.5).
func refusalOf(ev Event) *Refusal {
	d := ev.(message).m.(wire.Decline)
	if d.OutOfSync {
		d.Diagnosis = smc.DiagSync
	}
	return &Refusal{Remote: true, Code: d.Diagnosis}
}

func (m *server) declinedNext(_ time.Time, ev Event) {
	why := refusalOf(ev)
	m.giveBack()
	if why.Code == smc.DiagSync {
		m.do(PeerLostGroup{m.local.QPN, *why})
	}
	m.stayTCP(why)
}

func (m *server) declinedFirst(_ time.Time, ev Event) { m.stayTCP(refusalOf(ev)) }

func (m *server) acceptFirst(_ time.Time, ev Event) {
	m.send(AcceptingFirst, m.version.acceptFirst(ev.(GroupMade)))
}

func (m *server) confirmedFirst(now time.Time, ev Event) {
	if !m.takeConfirm(now, ev) {
		return
	}
	if no := m.version.confirmed(m.answer); no != nil {
		m.llc.abandon(now, Failure{Why: *no})
		return
	}
	m.llc.began = now
	m.enter(ConnectingFirst)
	m.do(ConnectFirst{Peer: m.answer.Endpoint, Terms: m.version.terms()})
}
