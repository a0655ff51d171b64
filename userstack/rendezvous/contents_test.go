// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"reflect"
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// version2First leads a server to the first contact of version 2.
const version2First = "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup; Turn; NoGroup"

// testTerms are what version 2 agrees on for the hosts of the scripts.
func testTerms(edit func(*Terms)) *Terms {
	t := &Terms{EID: testEID, Local: testSubnet, Release: 1, MaxConns: 255, MaxLinks: 2}
	edit(t)
	return t
}

func noPeerYet(*Terms) {}

// peerKnown adds what testExt tells.
func peerKnown(t *Terms) { t.Peer = PeerSystem{OS: smc.OSLinux, Release: 1, Host: "peer"} }

// ownExt is what this host tells the peer in a first contact of version 2.
func ownExt() *wire.FirstContactExt {
	return testExt(func(x *wire.FirstContactExt) { x.Hostname = wire.NewHostname("own") })
}

func declineV1(why smc.Diagnosis) Action {
	return Send{wire.Decline{PeerID: testOwn, Diagnosis: why, OutOfSync: why == smc.DiagSync}}
}

func declineV2(why smc.Diagnosis) Action {
	return Send{wire.Decline{PeerID: testOwn, Diagnosis: why, Version: wire.Version2, OSType: smc.OSLinux}}
}

// confirmMTU is this host's end in CONFIRM: the MTU is the lower one of both ends.
func confirmMTU() wire.Endpoint {
	e := testLocal()
	e.MTU = testEndpoint().MTU
	return e
}

// TestContents: what the messages and the other actions say, as RFC 7609, appendix A.2,
// has it: who the peer is, which end of the connection is meant, and what was agreed on.
func TestContents(t *testing.T) {
	peer, own := testEndpoint(), testLocal()
	v1 := wire.Proposal{
		PeerID: testOwn, GID: smc.GID{15: 2}, MAC: smc.MAC{2, 0, 0, 0, 0, 1}, IPv4: testSubnet.Masked(),
		Growth: make([]byte, wire.ProposalGrowthLinux),
	}
	offer := wire.Offer{
		Mode: wire.ModeR, EIDs: []wire.EID{testEID}, GID: smc.GID(testSubnet.Addr().As16()),
		Release: 1, MaxConns: 255, MaxLinks: 2, VendorOUI: wire.VendorOUI,
	}
	with := func(p wire.Proposal, o wire.Offer) wire.Proposal {
		t.Helper()
		p, err := p.WithOffer(o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	release0 := wire.Offer{Mode: offer.Mode, EIDs: offer.EIDs, GID: offer.GID}
	// A server of Linux takes the peer ID and the MAC address of PROPOSAL for those of the
	// client, also if version 1 is not offered.
	only2 := wire.Proposal{TypeV1: wire.ModeNone, PeerID: testOwn, MAC: smc.MAC{2, 0, 0, 0, 0, 1}, Growth: v1.Growth}
	toRKey := "; Joined; LLCDone"
	for _, tt := range []struct {
		who, events string
		want        []Action
	}{
		{"client", "Prepared", []Action{Survey{}}},
		{"client", toAccept1[:len(toAccept1)-len("; Sent")], []Action{Send{v1}}},
		{"client", "Prepared; Surveyed", []Action{Send{with(v1, offer)}}},
		{"client", "Prepared; Surveyed, version 2", []Action{Send{with(only2, offer)}}},
		{"client", "Prepared; Surveyed, release 0", []Action{Send{with(v1, release0)}}},
		{"client", "Prepared; Surveyed, nothing", []Action{declineV1(smc.DiagNoRoute)}},
		{"client", "Prepared; Failed", []Action{declineV1(smc.DiagMem)}},
		{"client", toAccept + "; ACCEPT 2, first, routed", []Action{FindPath{Local: testSubnet.Addr(), PeerGID: peer.GID}}},
		{"client", toAccept + "; ACCEPT 2, first, routed; PathFound", []Action{declineV2(smc.DiagIndirect)}},
		{"client", toAccept + "; ACCEPT 2, other EID", []Action{declineV2(smc.DiagNoUEID)}},
		{"client", toAccept + "; ACCEPT", []Action{JoinGroup{PeerID: peer.PeerID, GID: peer.GID, MAC: peer.MAC, Peer: &peer}}},
		{"client", toAccept + "; ACCEPT 2", []Action{JoinGroup{
			Terms: &Terms{EID: testEID, Local: testSubnet}, PeerID: peer.PeerID, GID: peer.GID, MAC: peer.MAC, Peer: &peer,
		}}},
		{"client", toAccept + "; ACCEPT; NoGroup", []Action{declineV1(smc.DiagSync)}},
		{"client", toAccept + "; ACCEPT; Joined; +30s", []Action{CancelConn{}, declineV1(smc.DiagInternal)}},
		{"client", toAccept + "; ACCEPT" + toRKey, []Action{Attach{peer}}},
		{"client", toAccept + "; ACCEPT" + toRKey + "; Attached", []Action{Send{wire.Confirm{Endpoint: own}}}},
		{"client", toAccept + "; ACCEPT 2" + toRKey + "; Attached", []Action{Send{wire.ConfirmV2{Endpoint: own, EID: testEID}}}},
		{"client", toAccept + "; ACCEPT, first", []Action{MakeGroup{PeerID: peer.PeerID, Peer: &peer}}},
		{"client", toAccept + "; ACCEPT 2, first", []Action{MakeGroup{Terms: testTerms(peerKnown), PeerID: peer.PeerID, Peer: &peer}}},
		{"client", toAccept + "; ACCEPT 2, first, routed; PathFound, routed", []Action{MakeGroup{
			Terms: testTerms(func(t *Terms) { peerKnown(t); t.Routed = true }), PeerID: peer.PeerID, Peer: &peer,
		}}},
		{"client", toAccept + "; ACCEPT, first; GroupMade", []Action{Send{wire.Confirm{FirstContact: true, Endpoint: confirmMTU()}}}},
		{"client", toAccept + "; ACCEPT 2, first; GroupMade", []Action{Send{wire.ConfirmV2{
			Endpoint: confirmMTU(), EID: testEID, FirstContact: ownExt(), GIDs: []smc.GID{own.GID, offer.GID},
		}}}},
		{"client", clientLink + "; LLCDone; ReadStopped", []Action{Attach{peer}}},
		{"client", clientLink + "; ReadFailed", []Action{EndGroup{}, declineV1(smc.DiagInternal)}},

		{"server", toAdmit, []Action{Survey{}}},
		{"server", "Prepared; PROPOSAL, both; Admitted", []Action{Survey{PeerGID: testGIDv2}}},
		{"server", toJoin, []Action{JoinGroup{PeerID: testPeer, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}}}},
		{"server", "Prepared; PROPOSAL, both; Admitted; Surveyed", []Action{JoinGroup{
			Terms: testTerms(noPeerYet), PeerID: testPeer, GID: testGIDv2,
		}}},
		{"server", "Prepared; PROPOSAL, both; Admitted; Surveyed, no path", []Action{
			Version1{PeerID: testPeer, Why: Refusal{Code: smc.DiagNoRoute}},
			JoinGroup{PeerID: testPeer, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}},
		}},
		{"server", "Prepared; PROPOSAL, neither; Admitted", []Action{declineV1(smc.DiagModeMismatch)}},
		{"server", toAdmit + "; Surveyed, other subnet", []Action{declineV1(smc.DiagPrefixMismatch)}},
		{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed, version 1", []Action{declineV2(smc.DiagNoUEID)}},
		{"server", toJoin + "; NoGroup", []Action{AwaitTurn{PeerID: testPeer}}},
		{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup", []Action{AwaitTurn{
			PeerID: testPeer, GID: testGIDv2, Terms: testTerms(noPeerYet),
		}}},
		{"server", toJoin + "; NoGroup; +3s", []Action{declineV1(smc.DiagTimeoutConfLink)}},
		{"server", toTurn + "; NoGroup", []Action{MakeGroup{PeerID: testPeer}}},
		{"server", version2First, []Action{MakeGroup{Terms: testTerms(noPeerYet), PeerID: testPeer}}},
		{"server", toJoin + toRKey, []Action{Send{wire.Accept{Endpoint: own}}}},
		{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed" + toRKey, []Action{Send{wire.AcceptV2{Endpoint: own, EID: testEID}}}},
		{"server", toConfirm + "; CONFIRM", []Action{Attach{peer}}},
		{"server", toConfirm + "; CONFIRM; Failed", []Action{RefuseConn{peer}, CancelConn{}}},
		{"server", toConfirm + "; DECLINE, out of sync", []Action{CancelConn{}, PeerLostGroup{
			QPN: own.QPN, Why: Refusal{Remote: true, Code: smc.DiagSync},
		}}},
		{"server", toTurn + "; NoGroup; GroupMade", []Action{Send{wire.Accept{FirstContact: true, Endpoint: own}}}},
		{"server", version2First + "; GroupMade", []Action{Send{wire.AcceptV2{Endpoint: own, EID: testEID, FirstContact: ownExt()}}}},
		{"server", toFirst + "; CONFIRM", []Action{ConnectFirst{Peer: peer}}},
		{"server", version2First + "; GroupMade; Sent; CONFIRM 2, first", []Action{ConnectFirst{Peer: peer, Terms: testTerms(peerKnown)}}},
		{"server", version2First + "; GroupMade; Sent; CONFIRM 2", []Action{EndGroup{}, declineV2(smc.DiagInternal)}},
		{"server", serverLink + "; LLCDone; ReadStopped", []Action{Attach{peer}}},
	} {
		s := newScript(t, tt.who, func(*table, State, EventKind, State) {})
		var got []Action
		for ev := range strings.SplitSeq(tt.events, "; ") {
			s.m.TakeActions(nil)
			s.happens(t, ev)
			got = s.m.TakeActions(nil)
		}
		for i, a := range got { // the cause is text for the log
			if v, ok := a.(Version1); ok {
				v.Why.Err = nil
				got[i] = v
			}
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %s:\n got %+v\nwant %+v", tt.who, tt.events, got, tt.want)
		}
	}
}

// TestPeerIDOfHost: a stack that uses its first device for this rendezvous learns its peer ID
// then, and a server as late as its turn comes. What the host does not know leaves what the
// machine knows.
func TestPeerIDOfHost(t *testing.T) {
	later := smc.NewPeerID(9, smc.MAC{2, 0, 0, 0, 0, 2})
	proposed := func(id smc.PeerID) smc.PeerID {
		m := NewClient(Config{PeerID: testOwn})
		h := testHost()
		h.PeerID = id
		m.Handle(start, Prepared{})
		m.TakeActions(nil)
		m.Handle(start, Surveyed{h})
		return m.TakeActions(nil)[0].(Send).Message.(wire.Proposal).PeerID
	}
	if got := proposed(later); got != later {
		t.Errorf("PROPOSAL has peer ID %s, the host has %s", got, later)
	}
	if got := proposed(smc.PeerID{}); got != testOwn {
		t.Errorf("PROPOSAL has peer ID %s, the machine knew %s", got, testOwn)
	}
	s := newScript(t, "server", func(*table, State, EventKind, State) {})
	for ev := range strings.SplitSeq(toJoin+"; NoGroup", "; ") {
		s.happens(t, ev)
	}
	s.m.Handle(start, Turn{later})
	s.happens(t, "NoGroup")
	s.m.TakeActions(nil)
	s.happens(t, "Failed")
	want := wire.Decline{PeerID: later, Diagnosis: smc.DiagMem}
	if got := s.m.TakeActions(nil); !reflect.DeepEqual(got, []Action{EndGroup{}, Send{want}}) {
		t.Errorf("after the turn: %+v, want EndGroup and %+v", got, want)
	}
}
