// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
)

// State is a row of the tables of transitions.
type State uint8

// The states. In those that are called Await the machine waits for the peer; in the
// others it waits for the answer to an action.
const (
	Looking           State = iota // server: at the peer's first bytes
	Preparing                      // the TCP connection is prepared for CLC
	AwaitProposal                  // server
	Admitting                      // server: is there room for one more?
	Surveying                      // what this host can offer is found out
	Proposing                      // client: PROPOSAL is sent
	AwaitAccept                    // client
	LettingGo                      // client: its program gets its connection
	FindingPath                    // client, version 2: is a router on the way to the server?
	Queueing                       // server: for the end of another first contact with the client
	Joining                        // an existing link group is looked for
	AwaitRKey                      // until the peer knows the RMB of the connection
	Accepting                      // server, existing link group: ACCEPT is sent
	AwaitConfirm                   // server, existing link group
	Attaching                      // existing link group
	Confirming                     // client, existing link group: CONFIRM is sent
	MakingGroup                    // first contact
	AcceptingFirst                 // server, first contact: ACCEPT is sent
	AwaitFirstConfirm              // server, first contact
	ConnectingFirst                // server, first contact: the queue pair goes to RTS
	ConfirmingFirst                // client, first contact: CONFIRM is sent
	AwaitLink                      // first contact: for CONFIRM LINK
	AwaitDecline                   // first contact: CONFIRM LINK has failed, the peer may decline
	Draining                       // first contact: what the peer sent until now is read
	AttachingFirst                 // first contact
	Declining                      // DECLINE is sent
	AwaitAck                       // until the peer's TCP has DECLINE
	TakingDecline                  // the peer has declined at the same time: its DECLINE is read
	Over                           // there is an Outcome
	numStates
)

var stateNames = [numStates]string{
	"Looking", "Preparing", "AwaitProposal", "Admitting", "Surveying", "Proposing", "AwaitAccept", "LettingGo", "FindingPath",
	"Queueing", "Joining", "AwaitRKey", "Accepting", "AwaitConfirm", "Attaching", "Confirming", "MakingGroup", "AcceptingFirst",
	"AwaitFirstConfirm", "ConnectingFirst", "ConfirmingFirst", "AwaitLink", "AwaitDecline", "Draining", "AttachingFirst",
	"Declining", "AwaitAck", "TakingDecline", "Over",
}

// String returns the name of the state.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// reads reports whether the machine takes bytes from TCP in the state.
func (s State) reads() bool {
	switch s {
	case AwaitProposal, AwaitAccept, AwaitConfirm, AwaitFirstConfirm, AwaitLink, AwaitDecline, TakingDecline:
		return true
	}
	return false
}
