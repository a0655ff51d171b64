// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"

	"smcr/userstack/wire"
)

// llcEngine runs the LLC exchanges of a group, one at a time that changes links.
type llcEngine struct {
	g  *Group
	ex exchange
	// layout is that of the messages to the peer. In version 2 it follows the byte
	// order in which the peer writes.
	layout wire.LLCLayout
	// endedAt is when the last exchange of links ended.
	endedAt time.Time
}

type exKind uint8

const (
	exNone exKind = iota
	exAdd
	exDelete
)

// exStep is what an exchange waits for.
type exStep uint8

const (
	waitAddReply    exStep = iota + 1 // server: ADD LINK reply
	waitAddCont                       // ADD LINK CONTINUATION, request or reply
	waitConfirm                       // CONFIRM LINK on the new link, request or reply
	waitDrain                         // server: completions on the link to be deleted
	waitDeleteReply                   // server: DELETE LINK reply
)

// exchange is the link exchange under way.
type exchange struct {
	kind     exKind
	step     exStep
	via      *Link // carries it
	link     *Link // is being added or deleted
	pairs    []*rmb
	told     int // of pairs
	peerLeft int // RTokens that the peer has not sent yet, -1 if not known
}

// linkAddition is ADD LINK (see llc_addlink.go).
type linkAddition struct {
	g      *Group
	wanted bool // server: try to add a link; client: report a device to the server
	// hopeful: server: a device of either side has come up since the last link, so a rejection may not last. Linux
	// announces a device whose port is not active yet, and rejects links while it still has more than it should.
	hopeful bool
	tried   bool // server: a second link was tried
	tries   int  // failed ones in a row
}

// linkDeletion is DELETE LINK (see llc_deletelink.go).
type linkDeletion struct{ g *Group }

// linkTests is TEST LINK (see llc_testlink.go).
type linkTests struct {
	g *Group
	// doubted: the peer may not have the group any more (see [Group.Doubt]).
	doubted bool
	deadAt  time.Time // when linkTests.peerLives last found no sign of the peer
	unsure  []*Conn   // connections that wait for a sign of the peer, see linkTests.prove
}

type rkKind uint8

const (
	rkNone rkKind = iota
	rkConfirm
	rkDelete
)

// rkeyExchange is the exchange of this side that is under way.
type rkeyExchange struct {
	kind rkKind
	via  *Link
	rmb  *rmb   // to confirm
	rmbs []*rmb // to delete
	told [maxSlots]*Link
	rest []wire.LinkRToken // links for continuations
	sent int               // entries of the last message
}

// peerRKey is a CONFIRM RKEY of the peer that has continuations.
type peerRKey struct {
	via   *Link // nil: there is none
	token *rtoken
	told  [maxSlots]*Link
	left  int
}

// rkeyEngine is CONFIRM RKEY and DELETE RKEY (see llc_rkey.go).
type rkeyEngine struct {
	g    *Group
	own  rkeyExchange
	peer peerRKey
}

// firstContact is the first contact of a group (RFC 7609, section 3.5.1), up to phase
// open.
type firstContact struct {
	g         *Group
	committed bool       // the peer may count on SMC-R: no fallback to TCP any more
	sentAt    time.Time  // the last progress, while timerFirstSend runs
	late      bool       // timerFirstSend runs for the second time, see firstGrace
	named     ConnParams // what ACCEPT or CONFIRM says
}

// ending is the end of a group.
type ending struct {
	g    *Group
	from phase // the phase in which the end began
	err  error // why the group ends
	// msg goes out over via. Links over which it went already are tried.
	msg   wire.DeleteLink
	via   *Link
	tried [maxSlots]bool
}

// linkChanges is what follows when links come and go.
type linkChanges struct {
	g         *Group
	failovers uint64 // connections moved from links that do not work, see [TakeFailovers]
}
