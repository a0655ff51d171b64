// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"net/netip"
	"time"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// Limits of the tables of a Decoder.
const (
	maxFlows    = 4096 // directions of TCP connections
	maxQPs      = 4096 // queue pairs of which the other end is known
	maxTokens   = 8192 // alert tokens
	maxSends    = 256  // SEND operations of several packets, at a time
	maxSameConn = 8    // connections with the same alert token
)

// A Decoder finds the events in packets.
type Decoder struct {
	flows  *recent[flowKey, *flow]
	offers *recent[Conn, QP]           // queue pair of the server in ACCEPT
	tokens *recent[uint32, []tokenUse] // by alert token
	qps    *recent[QP, smc.QPN]        // queue pair at the other end
	sends  *recent[sendKey, *sendParts]
	check  header.Checker

	frame int
	emit  func(*Event)
}

// A QP is a queue pair at an address.
type QP struct {
	Addr netip.Addr
	QPN  smc.QPN
}

// tokenUse is one meaning of an alert token.
type tokenUse struct {
	conn Conn
	qp   QP // that receives the messages with this token, at first
}

// New returns a decoder that passes each event to emit. The event belongs to emit.
func New(emit func(*Event)) *Decoder {
	return &Decoder{
		flows:  newRecent[flowKey, *flow](maxFlows),
		offers: newRecent[Conn, QP](maxFlows),
		tokens: newRecent[uint32, []tokenUse](maxTokens),
		qps:    newRecent[QP, smc.QPN](maxQPs),
		sends:  newRecent[sendKey, *sendParts](maxSends),
		emit:   emit,
	}
}

// A Link says what a packet begins with.
type Link int

// The links.
const (
	Ethernet  Link = iota // an Ethernet header
	LinuxSLL              // the header of "any" interfaces on Linux, version 1
	LinuxSLL2             // the header of "any" interfaces on Linux, version 2
	RawIP                 // an IP header
)

// A Packet is a captured packet.
type Packet struct {
	Frame  int // its number in the file
	Time   time.Time
	Link   Link
	Data   []byte // may be shorter than the packet was
	Length int    // of the whole packet, bytes
}

// Learn records that a connection uses an alert token for the messages that queue pair q
// receives. A stack knows this of connections that began before the trace.
func (d *Decoder) Learn(c Conn, token uint32, q QP) {
	uses, _ := d.tokens.get(token)
	for i := range uses {
		if uses[i].conn == c && uses[i].qp.Addr == q.Addr {
			uses[i].qp = q
			return
		}
	}
	if len(uses) >= maxSameConn {
		uses = uses[1:]
	}
	d.tokens.put(token, append(uses[:len(uses):len(uses)], tokenUse{c, q}))
}

// connOf returns the connection that a message with this token to queue pair q is about.
func (d *Decoder) connOf(token uint32, q QP) Conn {
	uses, _ := d.tokens.get(token)
	for i := len(uses) - 1; i >= 0; i-- {
		if uses[i].qp == q {
			return uses[i].conn
		}
	}
	// It may have moved to another link. Then the token tells only if no other connection
	// has the same.
	for _, u := range uses {
		if u.conn != uses[0].conn {
			return Conn{}
		}
	}
	if len(uses) > 0 {
		return uses[0].conn
	}
	return Conn{}
}

// LearnPair records that two queue pairs are connected, unless a number is not known.
func (d *Decoder) LearnPair(a, b QP) {
	if a.QPN != 0 && b.QPN != 0 {
		d.qps.put(a, b.QPN)
		d.qps.put(b, a.QPN)
	}
}
