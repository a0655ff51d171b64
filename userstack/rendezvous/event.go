// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"

	"smcr/smc"
	"smcr/userstack/wire"
)

// EventKind is a column of the tables of transitions.
type EventKind uint8

// The kinds of events. Four of them are CLC messages, which the machine makes of the
// bytes that it is given.
const (
	EvPrepared    EventKind = iota // [Prepared]
	EvSurveyed                     // [Surveyed]
	EvPathFound                    // [PathFound]
	EvAdmitted                     // [Admitted]
	EvTurn                         // [Turn]
	EvJoined                       // [Joined]
	EvNoGroup                      // [NoGroup]
	EvGroupMade                    // [GroupMade]
	EvConnected                    // [Connected]
	EvAttached                     // [Attached]
	EvFailed                       // [Failed]
	EvLetGone                      // [LetGone]
	EvSent                         // [Sent]
	EvSendFailed                   // [SendFailed]
	EvLLCDone                      // [LLCDone]
	EvLLCFailed                    // [LLCFailed]
	EvReceived                     // [Received]
	EvProposal                     // a whole PROPOSAL was received
	EvAccept                       // a whole ACCEPT was received
	EvConfirm                      // a whole CONFIRM was received
	EvDecline                      // a whole DECLINE was received
	EvGarbage                      // something else than a CLC message was received, or a part of one
	EvEOF                          // [EOF]
	EvReadFailed                   // [ReadFailed]
	EvReadStopped                  // [ReadStopped]
	EvFirstBytes                   // [FirstBytes]
	EvTCPState                     // [TCPState]
	EvDeadline                     // [Tick], once [Machine.Deadline] is reached
	EvCanceled                     // [Canceled]
	EvClosed                       // [Closed]
	numEvents
)

var eventNames = [numEvents]string{
	"prepared", "surveyed", "path found", "admitted", "turn", "joined", "no group", "group made", "connected", "attached",
	"failed", "let go", "sent", "send failed", "LLC done", "LLC failed", "received", "PROPOSAL", "ACCEPT", "CONFIRM", "DECLINE",
	"garbage", "EOF", "read failed", "read stopped", "first bytes", "TCP state", "deadline", "canceled", "closed",
}

// String returns the name of the kind.
func (k EventKind) String() string {
	if k < numEvents {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// An Event is something that happened. It is one of the types of this file.
type Event interface{ kind() EventKind }

// Answers to actions. The driver hands in exactly one for each action that has one,
// before any other event but [Canceled] and [Closed], which may take its place.
type (
	// Prepared answers [Prepare]: the TCP connection has two ends, and the stack can
	// send CLC messages on it.
	Prepared struct{}
	// Surveyed answers [Survey].
	Surveyed struct{ Host Host }
	// PathFound answers [FindPath].
	PathFound struct {
		Routed bool // a router is on the way
	}
	// Admitted answers [Admit]: the stack has room for this rendezvous.
	Admitted struct{}
	// Turn answers [AwaitTurn], perhaps much later, but only in state [Queueing].
	Turn struct {
		PeerID smc.PeerID // of this host, as in the messages from now on
	}
	// Joined answers [JoinGroup]: the connection has a place in a link group.
	Joined struct{}
	// NoGroup answers [JoinGroup]: no link group serves.
	NoGroup struct{}
	// GroupMade answers [MakeGroup].
	GroupMade struct {
		Local   wire.Endpoint // this end of the connection
		UDPPort uint16        // from which its queue pair sends with RoCE version 2; 0 if not known
	}
	// Connected answers [ConnectFirst].
	Connected struct{}
	// Attached answers [Attach].
	Attached struct {
		Local wire.Endpoint // this end of the connection, on the link that the peer named
	}
	// Failed answers any action but [Send]: the host cannot do it.
	Failed struct{ Failure }
	// LetGone answers [LetGo], perhaps later, but only in state [LettingGo]: connect() of the
	// program has returned, or would return.
	LetGone struct{}
	// Sent answers [Send].
	Sent struct{}
	// SendFailed answers [Send]: the TCP connection is of no use any more.
	SendFailed struct{ Err error }
)

// What happens by itself.
type (
	// LLCDone says that the LLC exchange for which [AwaitLLC] waits has succeeded:
	// CONFIRM LINK on a new link group; otherwise CONFIRM RKEY, if one was needed.
	LLCDone struct {
		Local wire.Endpoint // this end of the connection; on an existing link group only
	}
	// LLCFailed says that it has failed.
	LLCFailed struct{ Failure }
	// Received has bytes that were read from TCP: at most as many as [Machine.Want] said, or
	// [Rest] of them and those before.
	Received struct{ Bytes []byte }
	// EOF says that the peer has closed the TCP connection in order.
	EOF struct{}
	// ReadFailed says that reading from TCP has failed.
	ReadFailed struct{ Err error }
	// ReadStopped answers [StopReading]. What was read before was handed in before.
	ReadStopped struct{}
	// FirstBytes has what can be read from TCP and was left there, at least one byte,
	// after [Look]. Once a CLC header's worth was handed in, no more follows.
	FirstBytes struct{ Bytes []byte }
	// TCPState says how far the TCP connection is, again and again after
	// [WatchDecline].
	TCPState struct {
		Unacked bool   // the peer's TCP has not acknowledged all that was sent
		First   []byte // what can be read and was left there, up to a CLC header's worth
	}
	// Tick is the time alone.
	Tick struct{}
	// Canceled says that nobody wants the connection any more.
	Canceled struct{ Cause error }
	// Closed says that the stack ends.
	Closed struct{ Cause error }
)

// message is a whole CLC message.
type message struct{ m wire.CLC }

// garbage is something else than a CLC message.
type garbage struct{ err error }

func (Prepared) kind() EventKind    { return EvPrepared }
func (Surveyed) kind() EventKind    { return EvSurveyed }
func (PathFound) kind() EventKind   { return EvPathFound }
func (Admitted) kind() EventKind    { return EvAdmitted }
func (Turn) kind() EventKind        { return EvTurn }
func (Joined) kind() EventKind      { return EvJoined }
func (NoGroup) kind() EventKind     { return EvNoGroup }
func (GroupMade) kind() EventKind   { return EvGroupMade }
func (Connected) kind() EventKind   { return EvConnected }
func (Attached) kind() EventKind    { return EvAttached }
func (Failed) kind() EventKind      { return EvFailed }
func (LetGone) kind() EventKind     { return EvLetGone }
func (Sent) kind() EventKind        { return EvSent }
func (SendFailed) kind() EventKind  { return EvSendFailed }
func (LLCDone) kind() EventKind     { return EvLLCDone }
func (LLCFailed) kind() EventKind   { return EvLLCFailed }
func (Received) kind() EventKind    { return EvReceived }
func (EOF) kind() EventKind         { return EvEOF }
func (ReadFailed) kind() EventKind  { return EvReadFailed }
func (ReadStopped) kind() EventKind { return EvReadStopped }
func (FirstBytes) kind() EventKind  { return EvFirstBytes }
func (TCPState) kind() EventKind    { return EvTCPState }
func (Tick) kind() EventKind        { return EvDeadline }
func (Canceled) kind() EventKind    { return EvCanceled }
func (Closed) kind() EventKind      { return EvClosed }
func (garbage) kind() EventKind     { return EvGarbage }

func (m message) kind() EventKind {
	switch m.m.CLCType() {
	case wire.TypeProposal:
		return EvProposal
	case wire.TypeAccept:
		return EvAccept
	case wire.TypeConfirm:
		return EvConfirm
	default:
		return EvDecline
	}
}
