// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/userstack/wire"
)

const (
	// movePause is how long a connection that changes links, although its own link
	// works, waits after its last message was delivered. The peer may look at the
	// messages of the new link first, and a Linux peer resets a connection whose
	// failover validation comes before the messages that it is about.
	movePause = 20 * time.Millisecond
	// validateWait is how long a failover validation waits for messages that the
	// old link has delivered and that are not processed yet.
	validateWait = 200 * time.Millisecond
	// peerMoveWait is how long a client may take to move a connection whose
	// CONFIRM named a link that has gone.
	peerMoveWait = 10 * time.Second
)

// move is a planned move of this side to another link. A move after a failure (RFC 7609,
// section 4.6) is none.
//
//	From     | Event                      | To       | Actions
//	---------+----------------------------+----------+--------------------------------
//	none     | PlanMove, all delivered    | pausing  | timer movePause; nothing is sent
//	none     | PlanMove, outstanding      | draining | nothing new is sent
//	draining | last message delivered     | pausing  | timer movePause
//	pausing  | timer                      | none     | validation, over the new link
//	any      | link failed, CancelMove    | none     |
type move struct {
	planned bool  // draining or pausing
	timer   timer // pausing
}

func (m *move) cancel() { *m = move{} }

// peerMove is the change of the peer to another link. The peer then says up to which
// message it has proof of delivery (RFC 7609, section 4.6.1).
//
//	event                                   | then
//	----------------------------------------+------------------------------------------
//	validation, that message was processed  | the cursor may be lost (see lostCursor)
//	validation, that message is missing     | timer validateWait; later ones are deferred
//	the missing message comes               | the deferred one is processed
//	timer                                   | reset: data was lost with a link
//	CONFIRM named a link that has gone      | timer peerMoveWait
//	validation                              | that timer has no effect
//	that timer                              | reset: the peer did not move
type peerMove struct {
	done    bool   // the peer has moved the connection
	missing bool   // the message seq is waited for
	seq     uint16 // what the validation named
	timer   timer  // message seq has to come
	arrival timer  // the peer has to move the connection
	early   uint16 // last CDC message before Establish
}

// deferred is the newest message that cannot be processed yet.
type deferred struct {
	msg   wire.CDC
	there bool
}

func (d *deferred) put(m wire.CDC) {
	if !d.there || after(m.Seq, d.msg.Seq) {
		d.msg, d.there = m, true
	}
}

// after reports whether CDC message a was sent after b. Sequence numbers wrap.
func after(a, b uint16) bool { return int16(a-b) > 0 }

// keepAlive is the keepalive of a connection (RFC 7609, section 4.5.3).
type keepAlive struct {
	idle  time.Duration // 0: off
	used  time.Time     // last message sent or received
	timer timer
}

// look returns when to look again, or that the link has to be tested now. last is
// when the last message came over the link.
func (k *keepAlive) look(now, last time.Time) (at time.Time, test bool) {
	at = k.used.Add(k.idle)
	if used := last.Add(k.idle); used.After(at) {
		at = used
	}
	if now.Before(at) {
		return at, false
	}
	return now.Add(k.idle), true
}
