// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/smc"
	"smcr/userstack/wire"
)

// aborting reports whether one side has reset the connection: nothing is sent any
// more but the abort itself.
func aborting(s smc.ConnState) bool { return s == smc.StatePeerAbortWait || s == smc.StateProcessAbort }

// afterSending returns the state that follows s when the flag D or C goes out;
// received are the flags of the peer.
func afterSending(s smc.ConnState, flag, received wire.StateFlags) smc.ConnState {
	switch s {
	case smc.StateActive:
		return smc.StatePeerCloseWait1
	case smc.StateAppCloseWait1, smc.StateAppCloseWait2:
		if flag == wire.ConnSendingDone {
			return smc.StateAppCloseWait2
		}
		if received&wire.ConnClosed == 0 {
			return smc.StatePeerFinCloseWait
		}
	}
	return s
}

// afterReceiving returns the state that follows s when the peer has set D or C;
// received and sent are the flags of both sides now.
func afterReceiving(s smc.ConnState, received, sent wire.StateFlags) smc.ConnState {
	switch s {
	case smc.StateActive:
		return smc.StateAppCloseWait1
	case smc.StatePeerCloseWait1, smc.StatePeerCloseWait2:
		if received&wire.ConnClosed == 0 {
			return smc.StatePeerCloseWait2
		}
		if sent&wire.ConnClosed == 0 {
			return smc.StateAppFinCloseWait
		}
	}
	return s
}
