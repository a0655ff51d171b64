// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Beginnings of scripts.
const (
	toAccept   = "Prepared; Surveyed; Sent"
	toAccept1  = "Prepared; Surveyed, version 1; Sent"
	clientLink = toAccept + "; ACCEPT, first; GroupMade; Sent"
	toAdmit    = "Prepared; PROPOSAL; Admitted"
	toJoin     = toAdmit + "; Surveyed"
	toTurn     = toJoin + "; NoGroup; Turn"
	toConfirm  = toJoin + "; Joined; LLCDone; Sent"
	toFirst    = toTurn + "; NoGroup; GroupMade; Sent"
	serverLink = toFirst + "; CONFIRM; Connected"
)

// transitionTests are scripts: a machine, what happens to it (see script.happens), and what
// it does with the last event (see script.did).
var transitionTests = []struct{ who, events, want string }{
	// Client: PROPOSAL.
	{"client", "", "Preparing: Prepare"},
	{"client", "+1s; +6s; +50ms", "Preparing"}, // the driver has no deadline to answer
	{"client", "Prepared", "Surveying: Survey"},
	{"client", "Failed", "Over = reset"},
	{"client", "Prepared; Surveyed", "Proposing: Send PROPOSAL 1 and 2"},
	{"client", "Prepared; Surveyed, version 1", "Proposing: Send PROPOSAL"},
	{"client", "Prepared; Surveyed, version 2", "Proposing: Send PROPOSAL 2"},
	{"client", "Prepared; Surveyed, no port 2", "Proposing: Send PROPOSAL"},
	{"client", "Prepared; Surveyed, nothing", "Declining: Send DECLINE"},
	{"client", "Prepared; Surveyed, nothing; Sent", "Over = TCP, no route to the peer's RNIC"},
	{"client", "Prepared; Failed", "Declining: Send DECLINE"},
	{"client", "Prepared; Canceled", "Over = reset"},
	{"client", "Prepared; Surveyed; Sent", "AwaitAccept"},
	{"client", "Prepared; Surveyed; SendFailed", "Over = reset"},
	// Client: ACCEPT.
	{"client", toAccept + "; ACCEPT", "Joining: JoinGroup"},
	{"client", toAccept + "; ACCEPT 2", "Joining: JoinGroup"},
	{"client", toAccept + "; ACCEPT, first", "MakingGroup: MakeGroup"},
	{"client", toAccept + "; ACCEPT 2, first", "MakingGroup: MakeGroup"},
	{"client", toAccept + "; ACCEPT 2, first, routed", "FindingPath: FindPath"},
	{"client", toAccept + "; ACCEPT 2, first, routed; PathFound, routed", "MakingGroup: MakeGroup"},
	{"client", toAccept + "; ACCEPT 2, first, routed; PathFound", "Declining: Send DECLINE 2"},
	{"client", toAccept + "; ACCEPT 2, first, routed; Failed", "Declining: Send DECLINE 2"},
	{"client", toAccept + "; ACCEPT 2, other EID", "Declining: Send DECLINE 2"},
	{"client", toAccept + "; ACCEPT 2, release; Sent", "Over = TCP, release negotiation failed"},
	{"client", toAccept + "; ACCEPT 2, connections", "Declining: Send DECLINE 2"},
	{"client", toAccept + "; ACCEPT 2, links", "Declining: Send DECLINE 2"},
	{"client", toAccept1 + "; ACCEPT 2, first", "Over = reset, protocol"},
	{"client", "Prepared; Surveyed, version 2; Sent; ACCEPT, first", "Over = reset, protocol"},
	{"client", toAccept + "; DECLINE", "Over = peer declined negotiation of connections per link group failed"},
	{"client", toAccept + "; CONFIRM", "Over = reset, protocol"},
	{"client", toAccept + "; data", "Over = reset, protocol"},
	{"client", toAccept + "; EOF", "Over = reset, EOF"},
	{"client", toAccept + "; half; EOF", "Over = reset, protocol"},
	{"client", toAccept + "; half; ReadFailed", "Over = reset, protocol"},
	{"client", toAccept + "; one byte; EOF", "Over = reset, protocol"},
	{"client", toAccept + "; one byte; +6s; +50ms", "Over = reset, protocol"},
	{"client", toAccept + "; ReadFailed", "Over = reset"},
	{"client", toAccept + "; +5.999s", "AwaitAccept"},
	{"client", toAccept + "; +6s", "AwaitAccept"}, // it may have come in time
	{"client", toAccept + "; +6s; ACCEPT", "Joining: JoinGroup"},
	{"client", toAccept + "; +6s; +50ms", "Over = reset"},
	{"client", toAccept + "; half a DECLINE; +6s; +50ms", "Over = reset, protocol"},
	{"client", toAccept + "; Canceled", "Over = reset"},
	{"client", toAccept + "; Closed", "Over = reset"},
	// Client: subsequent contact.
	{"client", toAccept + "; ACCEPT; NoGroup", "Declining: Send DECLINE out of sync"},
	{"client", toAccept + "; ACCEPT; NoGroup; Sent", "Over = TCP, link group out of sync"},
	{"client", toAccept + "; ACCEPT; Failed", "Declining: Send DECLINE"},
	{"client", toAccept + "; ACCEPT; Joined", "AwaitRKey: AwaitLLC"},
	{"client", toAccept + "; ACCEPT; Joined; LLCFailed", "Declining: CancelConn, Send DECLINE"},
	{"client", toAccept + "; ACCEPT; Joined; +30s", "Declining: CancelConn, Send DECLINE"},
	{"client", toAccept + "; ACCEPT; Joined; Canceled", "Over: CancelConn = reset"},
	{"client", toAccept + "; ACCEPT; Joined; LLCDone", "Attaching: Attach"},
	{"client", toAccept + "; ACCEPT; Joined; LLCDone; Failed", "Declining: CancelConn, Send DECLINE"},
	{"client", toAccept + "; ACCEPT; Joined; LLCDone; Attached", "Confirming: Send CONFIRM"},
	{"client", toAccept + "; ACCEPT 2; Joined; LLCDone; Attached", "Confirming: Send CONFIRM 2"},
	{"client", toAccept + "; ACCEPT; Joined; LLCDone; Attached; SendFailed", "Over: AbortConn = reset"},
	{"client", toAccept + "; ACCEPT; Joined; LLCDone; Attached; Sent", "Over = SMC-R"},
	// Client: first contact.
	{"client", toAccept + "; ACCEPT, first; Failed", "Declining: EndGroup, Send DECLINE"},
	{"client", toAccept + "; ACCEPT, first; Failed; Sent", "AwaitAck: WatchDecline"},
	{"client", toAccept + "; ACCEPT, first; Failed; Sent; TCPState, acked", "Over = TCP, not enough memory"},
	{"client", toAccept + "; ACCEPT, first; Failed, too late", "Over: EndGroup = reset, too late"},
	{"client", toAccept + "; ACCEPT, first; GroupMade", "ConfirmingFirst: Send CONFIRM first"},
	{"client", toAccept + "; ACCEPT 2, first; GroupMade", "ConfirmingFirst: Send CONFIRM 2 first"},
	{"client", toAccept + "; ACCEPT, first; GroupMade; SendFailed", "Over: EndGroup = reset"},
	{"client", clientLink, "AwaitLink: AwaitLLC"},
	{"client", clientLink + "; LLCFailed; +99ms", "AwaitDecline"},
	{"client", clientLink + "; LLCFailed; +100ms", "Draining: StopReading"},
	{"client", clientLink + "; LLCFailed, too late; +50ms; ReadStopped", "Over: EndGroup = reset, too late"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; TCPState, acked", "AwaitAck"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; TCPState, acked; +249ms; TCPState, acked", "AwaitAck"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; TCPState, acked; +250ms; TCPState, acked", "Over = TCP, not enough memory"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; +20ms; TCPState, acked; +289ms; TCPState, acked", "AwaitAck"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; +20ms; TCPState, acked; +290ms; TCPState, acked", "Over = TCP, not enough memory"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; TCPState, DECLINE", "TakingDecline"},
	{"client", clientLink + "; +1s; LLCFailed; EOF; Sent; TCPState, DECLINE; DECLINE", "Over = TCP, not enough memory"},
	// Both: from CONFIRM on in a first contact.
	{"server", serverLink, "AwaitLink: AwaitLLC"},
	{"server", serverLink + "; LLCDone", "Draining: StopReading"},
	{"server", serverLink + "; LLCDone; ReadStopped", "AttachingFirst: Attach"},
	{"server", serverLink + "; LLCDone; half; ReadStopped", "Over: EndGroup = reset, protocol"},
	{"server", serverLink + "; one byte; LLCDone; ReadStopped", "Over: EndGroup = reset, protocol"},
	{"server", serverLink + "; LLCDone; DECLINE", "Over: EndGroup = peer declined negotiation of connections per link group failed"},
	{"server", serverLink + "; LLCDone; CONFIRM", "Over: EndGroup = reset, protocol"},
	{"server", serverLink + "; LLCDone; ReadStopped; Attached", "Over = SMC-R"},
	{"server", serverLink + "; LLCDone; ReadStopped; Failed", "Over: EndGroup = reset, too late"},
	{"server", serverLink + "; DECLINE", "Over: EndGroup = peer declined negotiation of connections per link group failed"},
	{"server", serverLink + "; data", "Over: EndGroup = reset, protocol"},
	{"server", serverLink + "; half; EOF", "Over: EndGroup = reset, protocol"},
	{"server", serverLink + "; EOF", "AwaitLink"},
	{"server", serverLink + "; EOF; LLCDone", "AttachingFirst: Attach"},
	{"server", serverLink + "; EOF; LLCFailed", "Declining: EndGroup, Send DECLINE"},
	{"server", serverLink + "; EOF; LLCFailed, too late", "Over: EndGroup = reset, too late"},
	{"server", serverLink + "; EOF; Canceled", "Over: EndGroup = reset"},
	{"server", serverLink + "; ReadFailed", "Declining: EndGroup, Send DECLINE"},
	{"server", serverLink + "; LLCFailed", "AwaitDecline"},
	{"server", serverLink + "; LLCFailed; DECLINE", "Over: EndGroup = peer declined negotiation of connections per link group failed"},
	{"server", serverLink + "; LLCFailed; EOF", "Declining: EndGroup, Send DECLINE"},
	{"server", serverLink + "; LLCFailed, too late; EOF", "Over: EndGroup = reset, too late"},
	{"server", serverLink + "; LLCFailed; ReadFailed", "Declining: EndGroup, Send DECLINE"},
	{"server", serverLink + "; LLCFailed, too late; +2s", "AwaitDecline"},
	{"server", serverLink + "; LLCFailed, too late; +2s; DECLINE", "Over: EndGroup = peer declined negotiation of connections per link group failed"},
	{"server", serverLink + "; LLCFailed, too late; +2s; +50ms; ReadStopped", "Over: EndGroup = reset, too late"},
	{"server", serverLink + "; LLCFailed, too late; ReadFailed", "Over: EndGroup = reset, too late"},
	{"server", serverLink + "; LLCFailed; +9ms", "AwaitDecline"},
	{"server", serverLink + "; LLCFailed; +10ms", "Draining: StopReading"},
	{"server", serverLink + "; LLCFailed; +10ms; ReadStopped", "Declining: EndGroup, Send DECLINE"},
	{"server", serverLink + "; LLCFailed; half; +50ms; ReadStopped", "AwaitDecline"},
	{"server", serverLink + "; LLCFailed; half a DECLINE; +50ms; ReadStopped; +6s; ReadStopped", "Over: EndGroup = reset, protocol"},
	{"server", serverLink + "; Canceled", "Over: EndGroup = reset"},
	// Both: DECLINE that may meet another one.
	{"server", serverLink + "; ReadFailed; SendFailed", "Over = reset"},
	{"server", serverLink + "; ReadFailed; Sent", "AwaitAck: WatchDecline"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, unacked", "AwaitAck"},
	{"server", serverLink + "; ReadFailed; Sent; +2499ms; TCPState, unacked", "AwaitAck"},
	{"server", serverLink + "; ReadFailed; Sent; +2500ms; TCPState, unacked", "Over = reset"},
	{"server", serverLink + "; +4s; ReadFailed; Sent; +499ms; TCPState, unacked", "AwaitAck"},
	{"server", serverLink + "; +4s; ReadFailed; Sent; +500ms; TCPState, unacked", "Over = reset"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, acked", "AwaitAck"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, acked; +250ms; TCPState, acked", "Over = TCP, internal error"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, data", "Over = TCP, internal error"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, DECLINE", "TakingDecline"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, DECLINE; DECLINE", "Over = TCP, internal error"},
	{"server", serverLink + "; ReadFailed; Sent; TCPState, DECLINE; half a DECLINE; EOF", "Over = reset, protocol"},
	{"server", serverLink + "; ReadFailed; Sent; Canceled", "Over = reset"},
	// Server: the look at the first bytes.
	{"looking", "", "Looking: Look"},
	{"looking", "FirstBytes, CLC", "Preparing: Prepare"},
	{"looking", "FirstBytes, data", "Over = TCP, the peer does not speak SMC"},
	{"looking", "FirstBytes, few", "Looking"},
	{"looking", "FirstBytes, few; +50ms; FirstBytes, few; +50ms", "Over = TCP, the peer does not speak SMC"},
	{"looking", "FirstBytes, few; FirstBytes, CLC", "Preparing: Prepare"},
	{"looking", "EOF", "Over = TCP, the peer does not speak SMC"},
	{"looking", "ReadFailed", "Over = TCP, the peer does not speak SMC"},
	{"looking", "Canceled", "Over = reset"},
	{"looking", "+6s", "Over = TCP, the peer does not speak SMC"},
	{"looking, option", "+6s", "Over = reset"},
	{"looking, option", "ReadFailed", "Over = reset"}, // its program may not have been let go
	{"looking, option", "EOF", "Over = TCP, the peer does not speak SMC"},
	{"looking, option", "FirstBytes, few; +100ms", "Over = TCP, the peer does not speak SMC"},
	{"looking", "FirstBytes, CLC; Prepared", "AwaitProposal"},
	{"looking", "+5900ms; FirstBytes, CLC; Prepared; +100ms; +49ms; PROPOSAL", "Admitting: Admit"},
	{"looking, option", "+5900ms; FirstBytes, CLC; Prepared; +100ms; +50ms", "Over = reset"},
	// Server: PROPOSAL.
	{"server", "", "Preparing: Prepare"},
	{"server", "Prepared", "AwaitProposal"},
	{"server", "Failed", "Over = reset"},
	{"server", "Prepared; PROPOSAL", "Admitting: Admit"},
	{"server", "Prepared; DECLINE", "Over = peer declined negotiation of connections per link group failed"},
	{"server", "Prepared; CONFIRM", "Over = reset, protocol"},
	{"server", "Prepared; +6s; +50ms", "Over = reset"},
	{"server", "Prepared; PROPOSAL; Failed", "Declining: Send DECLINE"},
	{"server", "Prepared; PROPOSAL, version 2; Failed", "Declining: Send DECLINE"},
	{"server", "Prepared; PROPOSAL; Admitted", "Surveying: Survey"},
	{"server", "Prepared; PROPOSAL, neither; Admitted", "Declining: Send DECLINE"},
	{"server", toAdmit + "; Failed", "Declining: Send DECLINE"},
	{"server", toAdmit + "; Surveyed, other subnet", "Declining: Send DECLINE"},
	{"server", "Prepared; PROPOSAL, both; Admitted; Surveyed", "Joining: JoinGroup"},
	{"server", "Prepared; PROPOSAL, both; Admitted; Surveyed, no path", "Joining: Version1, JoinGroup"},
	{"server", "Prepared; PROPOSAL, both, other EID; Admitted; Surveyed", "Joining: Version1, JoinGroup"},
	{"server", "Prepared; PROPOSAL, both; Admitted; Surveyed, other subnet", "Declining: Version1, Send DECLINE"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed", "Joining: JoinGroup"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed, version 1; Sent", "Over = TCP, no user EID in common"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed, no port 2", "Declining: Send DECLINE 2"},
	{"server", "Prepared; PROPOSAL, other EID; Admitted; Surveyed", "Declining: Send DECLINE 2"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Failed", "Declining: Send DECLINE 2"},
	{"server", toAdmit + "; Canceled", "Over = reset"},
	{"server", toJoin, "Joining: JoinGroup"},
	// Server: subsequent contact.
	{"server", toJoin + "; Joined", "AwaitRKey: EndTurn, AwaitLLC"},
	{"server", toJoin + "; Joined; LLCFailed", "Declining: CancelConn, Send DECLINE"},
	{"server", toJoin + "; Joined; +30s", "Declining: CancelConn, Send DECLINE"},
	{"server", toJoin + "; Joined; LLCDone", "Accepting: Send ACCEPT"},
	{"server", toJoin + "; Joined; LLCDone; Canceled", "Over: CancelConn = reset"},
	{"server", toJoin + "; Joined; LLCDone; SendFailed", "Over: CancelConn = reset"},
	{"server", toConfirm, "AwaitConfirm"},
	{"server", toConfirm + "; CONFIRM", "Attaching: Attach"},
	{"server", toConfirm + "; CONFIRM 2", "Over: CancelConn = reset, protocol"},
	{"server", toConfirm + "; CONFIRM; Attached", "Over = SMC-R"},
	{"server", toConfirm + "; CONFIRM; Failed", "Over: RefuseConn, CancelConn = reset, too late"},
	{"server", toConfirm + "; CONFIRM; Failed, not its own", "Over: CancelConn = reset, too late"},
	{"server", toConfirm + "; CONFIRM; Canceled", "Over: RefuseConn, CancelConn = reset, too late"},
	{"server", toConfirm + "; CONFIRM; Closed", "Over: RefuseConn, CancelConn = reset, too late"},
	{"server", toConfirm + "; DECLINE", "Over: CancelConn = peer declined negotiation of connections per link group failed"},
	{"server", toConfirm + "; DECLINE, out of sync", "Over: CancelConn, PeerLostGroup = peer declined link group out of sync"},
	{"server", toConfirm + "; Canceled", "AwaitConfirm"},
	{"server", toConfirm + "; Canceled; CONFIRM", "Over: RefuseConn, CancelConn = reset, too late"},
	{"server", toConfirm + "; Canceled; +30s; +50ms", "Over: CancelConn = reset"},
	{"server", toConfirm + "; Closed", "Over: CancelConn = reset"},
	{"server", toConfirm + "; EOF", "Over: CancelConn = reset, EOF"},
	// Server: first contact.
	{"server", toJoin + "; NoGroup", "Queueing: AwaitTurn"},
	{"server", toJoin + "; NoGroup; Failed", "Declining: Send DECLINE"},
	{"server", toJoin + "; NoGroup; +2.999s", "Queueing"},
	{"server", toJoin + "; NoGroup; +3s", "Declining: Send DECLINE"},
	{"server", toJoin + "; NoGroup; +3s; Sent", "Over = TCP, timeout in CONFIRM LINK"},
	{"server", toJoin + "; NoGroup; Canceled", "Over = reset"},
	{"server", toTurn, "Joining: JoinGroup"},
	{"server", toTurn + "; Joined", "AwaitRKey: EndTurn, AwaitLLC"}, // another first contact has made it
	{"server", toTurn + "; Joined; LLCDone; Sent; CONFIRM; Attached", "Over = SMC-R"},
	{"server", toTurn + "; NoGroup", "MakingGroup: MakeGroup"},
	{"server", toTurn + "; NoGroup; Failed", "Declining: EndGroup, Send DECLINE"},
	{"server", toTurn + "; NoGroup; Failed, too late", "Over: EndGroup = reset, too late"},
	{"server", toTurn + "; NoGroup; GroupMade", "AcceptingFirst: Send ACCEPT first"},
	{"server", toTurn + "; NoGroup; GroupMade; SendFailed", "Over: EndGroup = reset"},
	{"server", toFirst, "AwaitFirstConfirm"},
	{"server", toFirst + "; DECLINE", "Over: EndGroup = peer declined negotiation of connections per link group failed"},
	{"server", toFirst + "; +6s; +50ms", "Over: EndGroup = reset"},
	{"server", toFirst + "; Canceled", "Over: EndGroup = reset"},
	{"server", toFirst + "; CONFIRM", "ConnectingFirst: ConnectFirst"},
	{"server", toFirst + "; CONFIRM 2, first", "Over: EndGroup = reset, protocol"},
	{"server", toFirst + "; CONFIRM; Failed", "Declining: EndGroup, Send DECLINE"},
	{"server", toFirst + "; CONFIRM; Failed, too late", "Over: EndGroup = reset, too late"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup; Turn; NoGroup; GroupMade", "AcceptingFirst: Send ACCEPT 2 first"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup; Turn; NoGroup; GroupMade; Sent; CONFIRM 2, first", "ConnectingFirst: ConnectFirst"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup; Turn; NoGroup; GroupMade; Sent; CONFIRM 2, first, links", "Declining: EndGroup, Send DECLINE 2"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup; Turn; NoGroup; GroupMade; Sent; CONFIRM 2", "Declining: EndGroup, Send DECLINE 2"},
	{"server", "Prepared; PROPOSAL, version 2; Admitted; Surveyed; NoGroup; Turn; NoGroup; GroupMade; Sent; CONFIRM", "Over: EndGroup = reset, protocol"},
	// Programs that are held: see letgo.go.
	{"client, held", "Prepared; Surveyed", "Proposing: Send PROPOSAL 1 and 2"},
	{"client, held", "Prepared; Surveyed, nothing", "LettingGo: LetGo"},
	{"client, held", "Prepared; Surveyed, nothing; LetGone", "Declining: Send DECLINE"},
	{"client, held", "Prepared; Failed", "LettingGo: LetGo"},
	{"client, held", "Prepared; Failed; LetGone", "Declining: Send DECLINE"},
	{"client, held", "Prepared; Failed; LetGone; Sent", "Over = TCP, not enough memory"},
	{"client, held", toAccept + "; ACCEPT", "LettingGo: LetGo"},
	{"client, held", toAccept + "; ACCEPT 2", "LettingGo: LetGo"},
	{"client, held", toAccept + "; ACCEPT, first", "LettingGo: LetGo"},
	{"client, held", toAccept + "; ACCEPT 2, first", "LettingGo: LetGo"},
	{"client, held", toAccept + "; DECLINE", "LettingGo: LetGo"},
	{"client, held", toAccept1 + "; ACCEPT 2, first", "Over = reset, protocol"}, // not let go: it is made again over TCP
	{"client, held", toAccept + "; +6s; +50ms", "Over = reset"},
	{"client, held", toAccept + "; EOF", "Over = reset, EOF"},
	{"client, held", toAccept + "; ACCEPT; +2.999s", "LettingGo"},
	{"client, held", toAccept + "; ACCEPT; +3s", "Over = reset, not let go"},
	{"client, held", toAccept + "; ACCEPT; Failed", "Over = reset"},
	{"client, held", toAccept + "; ACCEPT; Canceled", "Over = reset"},
	{"client, held", toAccept + "; ACCEPT; Closed", "Over = reset"},
	{"client, held", toAccept + "; ACCEPT; LetGone", "Joining: JoinGroup"},
	{"client, held", toAccept + "; ACCEPT 2; LetGone", "Joining: JoinGroup"},
	{"client, held", toAccept + "; ACCEPT; LetGone; NoGroup", "Declining: Send DECLINE out of sync"},
	{"client, held", toAccept + "; ACCEPT; LetGone; Joined; LLCDone; Attached", "Confirming: Send CONFIRM"},
	{"client, held", toAccept + "; ACCEPT; LetGone; Joined; LLCDone; Attached; Sent", "Over = SMC-R"},
	{"client, held", toAccept + "; ACCEPT, first; LetGone", "MakingGroup: MakeGroup"},
	{"client, held", toAccept + "; ACCEPT 2, first; LetGone", "MakingGroup: MakeGroup"},
	{"client, held", toAccept + "; ACCEPT, first; LetGone; GroupMade", "ConfirmingFirst: Send CONFIRM first"},
	{"client, held", toAccept + "; ACCEPT 2, first, routed; LetGone", "FindingPath: FindPath"},
	{"client, held", toAccept + "; ACCEPT 2, other EID; LetGone", "Declining: Send DECLINE 2"},
	{"client, held", toAccept + "; DECLINE; LetGone", "Over = peer declined negotiation of connections per link group failed"},
	{"server, held", toAdmit + "; Failed; Sent", "AwaitAck: WatchDecline"},
	{"server, held", toAdmit + "; Failed; Sent; TCPState, unacked", "AwaitAck"},
	{"server, held", toAdmit + "; Failed; Sent; +5.999s; TCPState, unacked", "AwaitAck"},
	{"server, held", toAdmit + "; Failed; Sent; +6s; TCPState, unacked", "Over = reset"}, // the client has given up
	{"server, held", toAdmit + "; Failed; Sent; TCPState, unacked; TCPState, acked", "Over = TCP, not enough memory"},
	{"server, held", toAdmit + "; Failed; Sent; TCPState, data", "Over = TCP, not enough memory"},
	{"server, held", toAdmit + "; Failed; Sent; TCPState, DECLINE", "TakingDecline"},
	{"server, held", toAdmit + "; Failed; Sent; Canceled", "Over = reset"},
	{"server, held", "Prepared; PROPOSAL; Failed; Sent; TCPState, acked", "Over = TCP, not enough memory"},
	{"server, held", toJoin + "; NoGroup; +3s; Sent; TCPState, acked", "Over = TCP, timeout in CONFIRM LINK"},
	{"server, held", toConfirm + "; CONFIRM; Attached", "Over = SMC-R"},
	{"server, held", toConfirm + "; DECLINE", "Over: CancelConn = peer declined negotiation of connections per link group failed"},
	// What a driver must not do.
	{"client", "Joined", "Over = reset, internal"},
	{"client", "data", "Over = reset, internal"},
	// After the end nothing counts.
	{"server", toConfirm + "; CONFIRM; Attached; DECLINE", "Over = SMC-R"},
	{"server", toConfirm + "; CONFIRM; Attached; Closed", "Over = SMC-R"},
	{"server", toConfirm + "; CONFIRM; Attached; ReadFailed", "Over = SMC-R"},
}

// TestTransitions runs the scripts. Together they have to lead from every state of both
// tables, by every event that the table has for it, to every state that it lists.
func TestTransitions(t *testing.T) {
	type step struct {
		tb   *table
		from State
		on   EventKind
		to   State
	}
	seen := map[step]bool{}
	for _, tt := range transitionTests {
		s := newScript(t, tt.who, func(tb *table, from State, on EventKind, to State) {
			seen[step{tb, from, on, to}] = true
			if err := allowed(tb, from, on, to); err != nil {
				t.Errorf("%s: %s: %v", tt.who, tt.events, err)
			}
		})
		got := s.did()
		for ev := range strings.SplitSeq(tt.events, "; ") {
			if ev != "" {
				s.happens(t, ev)
				got = s.did()
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s:\n got %s\nwant %s", tt.who, tt.events, got, tt.want)
		}
	}
	for name, tb := range map[string]*table{"client": clientTable, "server": serverTable} {
		var missing []string
		for from := range tb.rows {
			for on, tr := range tb.rows[from] {
				if tr == nil {
					continue
				}
				for _, to := range tr.to {
					// What both sides have in common is tried on one.
					if !seen[step{tb, State(from), EventKind(on), to}] && !(common(tr) && (seen[step{clientTable, State(from), EventKind(on), to}] || seen[step{serverTable, State(from), EventKind(on), to}])) {
						missing = append(missing, fmt.Sprintf("%s in %s to %s", EventKind(on), State(from), to))
					}
				}
			}
		}
		slices.Sort(missing)
		if len(missing) > 0 {
			t.Errorf("%s: no script for\n%s", name, strings.Join(missing, "\n"))
		}
	}
}

// common reports whether a transition is in both tables.
func common(tr *transition) bool {
	return clientTable.rows[tr.in][tr.on] == tr && serverTable.rows[tr.in][tr.on] == tr
}
