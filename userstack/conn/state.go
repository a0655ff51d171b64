// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"strconv"

	"smcr/userstack/wire"
)

// State is the state of a connection (RFC 7609, section 4.8). The numbers are
// those of the kernel's socket diagnosis.
type State uint8

// The states.
const (
	// StateActive: data flows both ways.
	StateActive State = 1
	// StateInit: the rendezvous is not over.
	StateInit State = 2
	// StateClosed: both sides are done with the RMB elements.
	StateClosed State = 7
	// StatePeerCloseWait1: this side said first that it is done writing or
	// closed; the peer has said neither.
	StatePeerCloseWait1 State = 20
	// StatePeerCloseWait2: so did the peer, but it has not closed.
	StatePeerCloseWait2 State = 21
	// StateAppCloseWait1: the peer said first that it is done writing or
	// closed.
	StateAppCloseWait1 State = 22
	// StateAppCloseWait2: this side then said that it is done writing.
	StateAppCloseWait2 State = 23
	// StateAppFinCloseWait: the peer closed; the application has yet to.
	StateAppFinCloseWait State = 24
	// StatePeerFinCloseWait: this side closed second; the peer has yet to.
	StatePeerFinCloseWait State = 25
	// StatePeerAbortWait: this side aborted and waits for the peer's abort.
	StatePeerAbortWait State = 26
	// StateProcessAbort: the peer aborted; this side has yet to say that it
	// knows.
	StateProcessAbort State = 27
)

// String returns the name that smcss prints.
func (s State) String() string {
	switch s {
	case StateActive:
		return "ACTIVE"
	case StateInit:
		return "INIT"
	case StateClosed:
		return "CLOSED"
	case StatePeerCloseWait1:
		return "PEERCLOSEWAIT1"
	case StatePeerCloseWait2:
		return "PEERCLOSEWAIT2"
	case StateAppCloseWait1:
		return "APPCLOSEWAIT1"
	case StateAppCloseWait2:
		return "APPCLOSEWAIT2"
	case StateAppFinCloseWait:
		return "APPFINCLOSEWAIT"
	case StatePeerFinCloseWait:
		return "PEERFINCLOSEWAIT"
	case StatePeerAbortWait:
		return "PEERABORTWAIT"
	case StateProcessAbort:
		return "PROCESSABORT"
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// aborting reports whether one side has reset the connection: nothing is sent any
// more but the abort itself.
func aborting(s State) bool { return s == StatePeerAbortWait || s == StateProcessAbort }

// afterSending returns the state that follows s when the flag D or C goes out;
// received are the flags of the peer.
func afterSending(s State, flag, received wire.ConnState) State {
	switch s {
	case StateActive:
		return StatePeerCloseWait1
	case StateAppCloseWait1, StateAppCloseWait2:
		if flag == wire.ConnSendingDone {
			return StateAppCloseWait2
		}
		if received&wire.ConnClosed == 0 {
			return StatePeerFinCloseWait
		}
	}
	return s
}

// afterReceiving returns the state that follows s when the peer has set D or C;
// received and sent are the flags of both sides now.
func afterReceiving(s State, received, sent wire.ConnState) State {
	switch s {
	case StateActive:
		return StateAppCloseWait1
	case StatePeerCloseWait1, StatePeerCloseWait2:
		if received&wire.ConnClosed == 0 {
			return StatePeerCloseWait2
		}
		if sent&wire.ConnClosed == 0 {
			return StateAppFinCloseWait
		}
	}
	return s
}
