// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"

	"smcr/smc"
	"smcr/userstack/wire"
)

// An Action is something that the driver is to do. It is one of the types of this
// file. The comments say with which event the driver answers; those without an answer
// cannot fail.
type Action interface{ action() }

// What concerns TCP.
type (
	// Look asks what the peer sends first, without reading it: [FirstBytes], [EOF] or
	// [ReadFailed].
	Look struct{}
	// Prepare takes the TCP connection for CLC messages. Answer: [Prepared] or [Failed].
	Prepare struct{}
	// Send writes a CLC message. Answer: [Sent] or [SendFailed].
	Send struct{ Message wire.CLC }
	// StopReading ends a read that is waiting. Answer: [Received] if there is something,
	// and then [ReadStopped].
	StopReading struct{}
	// WatchDecline asks for [TCPState], at once and then again and again, so that a
	// change is told within a millisecond; if Rarely is set, within an eighth of the time
	// since, if that is longer.
	WatchDecline struct{ Rarely bool }
	// LetGo lets the program of a client go, which still waits for its connect(). What it
	// sends waits for the outcome. Answer: [LetGone] or [Failed].
	LetGo struct{}
)

// What concerns the host.
type (
	// Admit asks whether the stack has room for one more rendezvous with this
	// client. Answer: [Admitted] or [Failed].
	Admit struct{}
	// Survey asks what this host can offer on the way to the peer. Answer: [Surveyed]
	// or [Failed].
	Survey struct {
		// PeerGID is the GID of version 2 in the client's PROPOSAL; for a client, and
		// without an offer of version 2, it is zero.
		PeerGID smc.GID
	}
	// FindPath asks whether a router is on the way from an address of this host to a
	// GID of version 2. Answer: [PathFound] or [Failed].
	FindPath struct {
		Local   netip.Addr
		PeerGID smc.GID
	}
	// Version1 says that the client offered version 2 as well, and why it is not used.
	Version1 struct {
		PeerID smc.PeerID
		Why    Refusal
	}
)

// What concerns link groups and the connection.
type (
	// AwaitTurn waits until the server has no other first contact under way with the
	// same client. The client's address belongs to what tells clients apart (see
	// [Contact]). Answer: [Turn], or [Failed] if too many first contacts are under way.
	AwaitTurn struct {
		PeerID smc.PeerID
		GID    smc.GID // of version 2, else zero: a peer that offers no version 1 may leave its peer ID zero
		Terms  *Terms  // nil in version 1
	}
	// EndTurn lets the next first contact with the client begin. It is implied by the
	// end of the rendezvous.
	EndTurn struct{}
	// JoinGroup puts the connection on an existing link group. A server joins only a
	// link group whose first contact came from the client's address: the peer ID, the
	// GID and the MAC address of PROPOSAL can be those of another host, and ACCEPT tells
	// the client about the link group. Answer: [Joined], [NoGroup] or [Failed].
	JoinGroup struct {
		Terms  *Terms // nil in version 1
		PeerID smc.PeerID
		GID    smc.GID
		MAC    smc.MAC
		// Peer is what ACCEPT says, with the queue pair; nil for a server, to whom
		// PROPOSAL names none.
		Peer *wire.Endpoint
	}
	// MakeGroup makes a link group with its first queue pair, in INIT, and the
	// connection. For a client it takes the queue pair to RTR. Answer: [GroupMade] or
	// [Failed].
	MakeGroup struct {
		Terms  *Terms // nil in version 1
		PeerID smc.PeerID
		Peer   *wire.Endpoint // what ACCEPT says; nil for a server
	}
	// ConnectFirst takes the queue pair of a server's new link group to RTS, and begins
	// CONFIRM LINK. Answer: [Connected] or [Failed].
	ConnectFirst struct {
		Peer  wire.Endpoint // what CONFIRM says
		Terms *Terms        // nil in version 1; with what CONFIRM says of the peer
	}
	// AwaitLLC waits for the outcome of the LLC exchange: [LLCDone] or [LLCFailed].
	AwaitLLC struct{}
	// Attach joins the connection to the peer's end of it. Answer: [Attached] or
	// [Failed].
	Attach struct{ Peer wire.Endpoint }
	// RefuseConn resets the connection on the link group, because the peer uses SMC-R
	// already.
	RefuseConn struct{ Peer wire.Endpoint }
	// CancelConn gives back a connection that is not attached.
	CancelConn struct{}
	// AbortConn resets a connection that is attached.
	AbortConn struct{}
	// EndGroup ends the link group that [MakeGroup] made, with its connection.
	EndGroup struct{}
	// PeerLostGroup says that the peer does not have the link group any more whose
	// link ACCEPT named.
	PeerLostGroup struct {
		QPN smc.QPN // this host's end of the link
		Why Refusal
	}
)

func (Look) action()          {}
func (Prepare) action()       {}
func (Send) action()          {}
func (StopReading) action()   {}
func (WatchDecline) action()  {}
func (LetGo) action()         {}
func (Admit) action()         {}
func (Survey) action()        {}
func (FindPath) action()      {}
func (Version1) action()      {}
func (AwaitTurn) action()     {}
func (EndTurn) action()       {}
func (JoinGroup) action()     {}
func (MakeGroup) action()     {}
func (ConnectFirst) action()  {}
func (AwaitLLC) action()      {}
func (Attach) action()        {}
func (RefuseConn) action()    {}
func (CancelConn) action()    {}
func (AbortConn) action()     {}
func (EndGroup) action()      {}
func (PeerLostGroup) action() {}
