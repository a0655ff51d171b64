// SPDX-License-Identifier: Apache-2.0

package smc

import "fmt"

// ConnState is the state of a connection, or of an SMC socket (RFC 7609, section
// 4.8). The numbers are those of the kernel's socket diagnosis
// (linux/smc_diag.h).
type ConnState uint8

// StateActive is the state of a connection on which data flows both ways.
const StateActive ConnState = 1

// StateInit is the state before the rendezvous is complete.
const StateInit ConnState = 2

// StateClosed is the state after both hosts gave up the RMB elements.
const StateClosed ConnState = 7

// StateListen is the state of a listening socket.
const StateListen ConnState = 10

// StatePeerCloseWait1 is entered by the host that closes or ends writing first.
// The peer has done neither.
const StatePeerCloseWait1 ConnState = 20

// StatePeerCloseWait2 follows StatePeerCloseWait1 when the peer ends writing. The
// peer has not closed.
const StatePeerCloseWait2 ConnState = 21

// StateAppCloseWait1 is entered when the peer closes or ends writing first.
const StateAppCloseWait1 ConnState = 22

// StateAppCloseWait2 follows StateAppCloseWait1 when this host ends writing.
const StateAppCloseWait2 ConnState = 23

// StateAppFinCloseWait is the state after the peer closed. The local program has
// yet to close.
const StateAppFinCloseWait ConnState = 24

// StatePeerFinCloseWait is the state after this host closed second. The peer has
// yet to close.
const StatePeerFinCloseWait ConnState = 25

// StatePeerAbortWait is the state after this host aborted. It waits for the
// peer's abort.
const StatePeerAbortWait ConnState = 26

// StateProcessAbort is the state after the peer aborted. This host has yet to
// answer.
const StateProcessAbort ConnState = 27

// String returns the name in capitals, without blanks, as smcss prints it.
func (s ConnState) String() string {
	switch s {
	case StateActive:
		return "ACTIVE"
	case StateInit:
		return "INIT"
	case StateClosed:
		return "CLOSED"
	case StateListen:
		return "LISTEN"
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
	return fmt.Sprintf("ConnState(%d)", uint8(s))
}
