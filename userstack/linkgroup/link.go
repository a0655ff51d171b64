// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// Sizes of a link's send queue.
const (
	minSendQueue     = 16
	defaultSendQueue = 48
	// llcReserve is what the data path leaves free for LLC messages.
	llcReserve = 4
	// maxLLCQueue is how many LLC messages may wait for a free request. Only a
	// peer that sends requests and does not receive the answers reaches this
	// limit.
	maxLLCQueue = 64
)

// MaxLinks is the largest number of symmetric links of a group (RFC 7609,
// section 2.2.2).
const MaxLinks = 8

const (
	// maxSlots bounds the links that exist at one time: the symmetric ones,
	// the asymmetric one and one that is being deleted (RFC 7609, section
	// 2.2.2).
	maxSlots = MaxLinks + 2
)

// Link is one path of a group: a pair of connected queue pairs (RFC 7609,
// section 2.2).
type Link struct {
	// Data is free for the driver.
	Data any

	g       *Group
	id      uint8
	slot    int // index into the RToken tables
	uid     uint32
	peerUID uint32
	dev     Device
	local   Endpoint
	peer    Endpoint
	state   smc.LinkState
	qpOpen  bool
	conns   int

	sendQueue
	linkTest

	lastRx  time.Time // a message came
	lastAck time.Time // the peer's adapter acknowledged what was sent

	del deletion
}

// deletePhase is how far the deletion of a link has come.
//
//	From              | Event                              | To
//	------------------+------------------------------------+--------------------
//	none              | server: failed, not needed, asked  | wanted
//	wanted            | server: its carrier fails          | wanted: once more
//	wanted            | server: reply received             | the link is removed
//	none, asked       | client: failed                     | asked
//	none, asked       | client: DELETE LINK received       | reply
//	reply             | client: drained, or the time over  | replied
//	replied           | client: delivered, or the time over| the link is removed
type deletePhase uint8

const (
	deleteNone    deletePhase = iota
	deleteWanted              // server: the exchange is to be run, or runs
	deleteAsked               // client: the server was asked to delete the link
	deleteReply               // client: the reply goes out when the link is drained
	deleteReplied             // client: the link is removed when the reply is delivered
)

// deletion is the deletion of a link.
type deletion struct {
	phase   deletePhase
	orderly bool // the link still works
	reason  wire.DeleteLinkReason
	via     *Link     // client: the link that carries the exchange
	at      time.Time // client: when the wait for the next step is over
}

// want makes the server run the exchange.
func (d *deletion) want(orderly bool, reason wire.DeleteLinkReason) {
	d.phase, d.orderly, d.reason = deleteWanted, orderly, reason
}

// sendQueue is the send queue of a link, and what waits for room in it.
type sendQueue struct {
	// Requests that have not completed, oldest first.
	sq        []request
	sqHead    int
	sqLen     int
	used      int // work requests that they take
	lastToken uint64
	llcq      []llcItem
	flooded   bool // llcq has exceeded its limit

	// Connections that wait for room in the send queue, in order.
	waitHead, waitTail *Conn
}

// linkTest is the test of a quiet link (see llc_testlink.go).
type linkTest struct {
	testAt   time.Time // next look at the link, zero if none
	testing  bool      // since testedAt
	testedAt time.Time
	testData [16]byte
}

// request is a signaled work request with the unsignaled ones before it.
type request struct {
	token   uint64
	n       int          // work requests
	conn    *Conn        // of a CDC message
	receipt conn.Receipt // its receipt
	then    after
	on      *Link
}

type llcItem struct {
	msg  [MsgLen]byte
	long []byte // the message in place of msg
	then after
	on   *Link
}

// after is what happens when a message has been delivered.
type after uint8

const (
	nothing    after = iota
	removeIt         // remove the link named on
	endOfGroup       // the group is terminated
	commit           // no fallback any more
)

// ID returns the link number, unique in the group; 0 until the client
// learned it.
func (l *Link) ID() uint8 { return l.id }

// UID returns the local link user ID.
func (l *Link) UID() uint32 { return l.uid }

// PeerUID returns the peer's link user ID.
func (l *Link) PeerUID() uint32 { return l.peerUID }

// Local returns the local end.
func (l *Link) Local() Endpoint { return l.local }

// Peer returns the other end, zero while it is not known.
func (l *Link) Peer() Endpoint { return l.peer }

// Dev returns the device of the local end.
func (l *Link) Dev() Device { return l.dev }

// State returns the state.
func (l *Link) State() smc.LinkState { return l.state }

// ConnCount returns how many connections write over the link.
func (l *Link) ConnCount() int { return l.conns }

// usable reports whether the link is active and its queue pair takes work requests.
func (l *Link) usable() bool { return l.state == smc.LinkActive && l.qpOpen }

// room returns how many work requests the data path may post.
func (l *sendQueue) room() int { return len(l.sq) - llcReserve - l.used }

// push notes a signaled request that takes n work requests and returns its
// token. The queue has room.
func (l *sendQueue) push(n int) *request {
	l.lastToken++
	r := &l.sq[(l.sqHead+l.sqLen)%len(l.sq)]
	*r = request{token: l.lastToken, n: n}
	l.sqLen++
	l.used += n
	return r
}

// pop removes the oldest request.
func (l *sendQueue) pop() request {
	r := l.sq[l.sqHead]
	l.sq[l.sqHead] = request{}
	l.sqHead = (l.sqHead + 1) % len(l.sq)
	l.sqLen--
	l.used -= r.n
	return r
}

// sendLLC queues an LLC message. It goes out at once if the send queue has
// room.
func (l *Link) sendLLC(m wire.LLC, then after, on *Link) {
	if !l.qpOpen {
		return
	}
	var it llcItem
	b, err := wire.AppendLLC(it.msg[:0], l.g.llc.layout, m)
	if err != nil || len(b) < MsgLen {
		// All values come from this package or were parsed.
		panic("linkgroup: cannot encode " + m.LLCType().String())
	}
	if len(b) > MsgLen {
		it.long = b
	} else {
		copy(it.msg[:], b) // does nothing if b is already there
	}
	it.then, it.on = then, on
	l.queueLLC(&it)
}

func (l *Link) queueLLC(it *llcItem) {
	if len(l.llcq) >= maxLLCQueue {
		l.flooded = true // advance handles this
		return
	}
	if len(l.llcq) > 0 || l.used >= len(l.sq) {
		l.llcq = append(l.llcq, *it)
		return
	}
	l.postLLC(it)
}

func (l *Link) postLLC(it *llcItem) {
	r := l.push(1)
	r.then, r.on = it.then, it.on
	l.g.actions.add(Action{Kind: ActSend, Link: l, Msg: it.msg, Long: it.long, Token: r.token})
}

// pump gives the free part of the send queue to the messages and connections that wait
// for it.
func (l *Link) pump() {
	for len(l.llcq) > 0 && l.used < len(l.sq) {
		l.postLLC(&l.llcq[0])
		l.llcq = append(l.llcq[:0], l.llcq[1:]...)
	}
	for c := l.waitHead; c != nil; c = l.waitHead {
		if c.Protocol().MayPost() {
			if !c.Protocol().Post() {
				return
			}
		}
		l.unqueue(c)
		if c.Protocol().MayPost() {
			l.enqueue(c) // behind the others
		}
	}
}

func (l *Link) enqueue(c *Conn) {
	if c.waitOn != nil {
		return
	}
	c.waitOn, c.waitPrev, c.waitNext = l, l.waitTail, nil
	if l.waitTail != nil {
		l.waitTail.waitNext = c
	} else {
		l.waitHead = c
	}
	l.waitTail = c
}

func (l *Link) unqueue(c *Conn) {
	if c.waitOn != l {
		return
	}
	if c.waitPrev != nil {
		c.waitPrev.waitNext = c.waitNext
	} else {
		l.waitHead = c.waitNext
	}
	if c.waitNext != nil {
		c.waitNext.waitPrev = c.waitPrev
	} else {
		l.waitTail = c.waitPrev
	}
	c.waitOn, c.waitPrev, c.waitNext = nil, nil, nil
}

// drained reports whether no connection waits for a completion on the link.
func (l *sendQueue) drained() bool {
	for i := range l.sqLen {
		if l.sq[(l.sqHead+i)%len(l.sq)].conn != nil {
			return false
		}
	}
	return true
}

// closeQP destroys the queue pair. Requests that have not completed count as
// failed. Messages that were queued for the link are not sent.
func (l *Link) closeQP() {
	if !l.qpOpen {
		return
	}
	l.qpOpen = false
	l.testAt = time.Time{}
	l.g.env.CloseQP(l)
	l.g.actions.drop(l)
	for l.sqLen > 0 {
		if r := l.pop(); r.conn != nil {
			r.conn.Protocol().Undelivered(r.receipt)
		}
	}
	l.llcq = nil
	for l.waitHead != nil {
		l.unqueue(l.waitHead)
	}
}

func (l *Link) setID(id uint8) {
	l.id = id
	l.g.links.used[id] = true
	l.uid = binary.BigEndian.Uint32(l.g.cfg.ID[:]) + uint32(id)
}
