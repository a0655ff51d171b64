// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// The end of a connection (RFC 7609, section 4.8). "send D", "send C" and "send A"
// stand for a CDC message with PeerDoneWriting, PeerConnectionClosed and
// PeerConnAbort; D and C go out once all data is delivered.
//
//	From            | Event                     | To              | Actions                     | Section
//	----------------+---------------------------+-----------------+-----------------------------+--------
//	INIT            | Establish                 | ACTIVE          | deferred message            | 4.8.1 2
//	any             | CloseWrite, data pending  | same            | D later                     | 4.8.1 3A
//	any             | Close, data pending       | same            | C later, timer CloseWait    | 4.8.1 3A
//	any             | Close, unread data        | PEERABORTWAIT   | send A                      | 4.8.1 3A
//	ACTIVE          | D sent                    | PEERCLOSEWAIT1  |                             | 4.8.1 3A
//	ACTIVE          | C sent                    | PEERCLOSEWAIT1  | timer CloseWait             | 4.8.1 3A
//	ACTIVE          | D received                | APPCLOSEWAIT1   | wake reader                 | 4.8.1 4A
//	ACTIVE          | C received                | APPCLOSEWAIT1   | wake reader, writer         | 4.8.1 4A
//	any             | C received, data pending  | PEERABORTWAIT   | send A                      | 4.8.1 4A
//	PEERCLOSEWAIT1  | D received                | PEERCLOSEWAIT2  | wake reader                 | 4.8.1 3B
//	PEERCLOSEWAIT1,2| C sent (after D)          | same            | timer CloseWait             | 4.8.1 3
//	PEERCLOSEWAIT1,2| C received, C not sent    | APPFINCLOSEWAIT | wake reader, writer         | 4.8.1 3D
//	PEERCLOSEWAIT1,2| C received, C sent        | CLOSED          | Closed nil                  | 4.8.1 3C
//	APPFINCLOSEWAIT | C sent                    | CLOSED          | Closed nil                  | 4.8.1 3D
//	APPCLOSEWAIT1   | D sent                    | APPCLOSEWAIT2   |                             | 4.8.1 4B
//	APPCLOSEWAIT1,2 | C received                | same            | wake writer                 | 4.8.1 4A
//	APPCLOSEWAIT1,2 | C sent, C received before | CLOSED          | Closed nil                  | 4.8.1 4C
//	APPCLOSEWAIT1,2 | C sent, not received      | PEERFINCLOSEWAIT| timer CloseWait             | 4.8.1 4C
//	PEERFINCLOSEWAIT| C received                | CLOSED          | Closed nil                  | 4.8.1 4D
//	any             | CloseWait without progress| PEERABORTWAIT   | send A                      | 4.8.1
//	any             | Abort, bad message        | PEERABORTWAIT   | send A, purge, wake both    | 4.8.2 1A
//	any             | TCP ended, grace over     | PEERABORTWAIT   | as A received               | 4.8.2
//	any             | A received                | PROCESSABORT    | send A, purge what is to be | 4.8.2 2A
//	                |                           |                 | sent, wake both             |
//	any, C sent     | A received                | PROCESSABORT    | the same without A          | A.4
//	PROCESSABORT    | A or C delivered, and the | CLOSED          | Closed ErrReset             | 4.8.2 2B
//	                | rest read, or Close       |                 |                             |
//	PEERABORTWAIT   | A or C received, A deliv. | CLOSED          | Closed err                  | 4.8.2 1B
//	PEERABORTWAIT,  | AbortWait over            | CLOSED          | Closed err, RMBE is         | 4.8.2 1B
//	PROCESSABORT    |                           |                 | not used again              |
//	any             | last link failed          | CLOSED          | Closed ErrReset             | 4.8.3
//	any             | peer gave up its RMBE     | CLOSED          | Closed ErrReset, nil        | 4.4.2
//	                |                           |                 | if C was sent               |
//
// CLOSED is entered when the last message of this side has been delivered. That the
// RMBE is not used again after an abort timer is stricter than the RFC, which gives
// it to another connection.

// progEnd is how far the program has ended its side. It only goes up.
type progEnd uint8

const (
	progOpen      progEnd = iota
	progWriteDone         // it sends no more (shutdown)
	progClosed            // it neither sends nor reads
)

// closing is what both sides have said about the end of the connection.
type closing struct {
	prog     progEnd
	sent     wire.StateFlags // flags sent
	acked    wire.StateFlags // flags sent and delivered
	received wire.StateFlags // flags of the peer
	timer    timer           // CloseWait or AbortWait
	tcp      tcpEnd
}

// lastFlags are the flags of which either is the last word of a side.
const lastFlags = wire.ConnClosed | wire.ConnAbnormalClose

// due returns the state flag that is due once all data has been delivered (RFC 7609,
// section 4.8.1, 3A), or 0.
func (c *closing) due() wire.StateFlags {
	switch {
	case c.prog == progClosed && c.sent&wire.ConnClosed == 0:
		return wire.ConnClosed
	case c.prog == progWriteDone && c.sent&(wire.ConnSendingDone|wire.ConnClosed) == 0:
		return wire.ConnSendingDone
	}
	return 0
}

// answered reports whether a reset by the peer needs no answer in state s: the C that
// was sent says already that this side is done, and no message follows it (RFC 7609,
// appendix A.4).
func (c *closing) answered(s smc.ConnState) bool {
	return s == smc.StateProcessAbort && c.sent&wire.ConnClosed != 0
}

// complete reports whether both sides are done with the connection in state s.
func (c *closing) complete(s smc.ConnState) bool {
	switch {
	case c.received&lastFlags == 0:
		return false
	case aborting(s):
		return c.acked&wire.ConnAbnormalClose != 0 || c.answered(s) && c.acked&wire.ConnClosed != 0
	}
	return c.acked&wire.ConnClosed != 0
}

// tcpExplained reports whether the end of the TCP connection follows from what the
// peer said on the link.
func (c *closing) tcpExplained() bool {
	if c.received&lastFlags != 0 {
		return true
	}
	return !c.tcp.reset && c.received&wire.ConnSendingDone != 0
}

// tcpEnd is the end of the TCP connection below. If the peer does not explain it on
// the link, the connection is reset:
//
//	time since the end     | what is known                        | then
//	-----------------------+--------------------------------------+----------------------------
//	< TCPGrace             |                                      | wait; TEST LINK if the peer
//	                       |                                      | has sent nothing since
//	any                    | RST                                  | reset
//	< TCPGraceAlive        | a message came since                 | wait for TCPGraceAlive
//	< TCPGraceAlive        | a sign of the peer in the last       | wait, TCPGrace from the
//	                       | TCPGrace                             | sign
//	< TCPGraceAlive        | its stack lives (PeerLives)          | wait for TCPGrace
//	otherwise              |                                      | reset
type tcpEnd struct {
	at    time.Time // zero if it has not ended
	reset bool      // by RST
	timer timer     // the next look
}

// verdict is what follows from a look at an ended TCP connection.
type verdict struct {
	wait  bool      // look again at the given time, else reset the connection
	again time.Time // when
	test  bool      // test the link
}

// judge looks at a connection without TCP below, whose end the peer has not
// explained for a while.
func (e *tcpEnd) judge(now time.Time, t *Timers, l Liveness) verdict {
	first, last := e.at.Add(t.TCPGrace), e.at.Add(t.TCPGraceAlive)
	spoke := l.LastMessage().After(e.at)
	switch {
	case now.Before(first):
		return verdict{wait: true, again: first, test: !spoke && !e.reset}
	case e.reset || !now.Before(last):
		return verdict{}
	case spoke:
		return verdict{wait: true, again: last}
	case l.LastSign().Add(t.TCPGrace).After(now):
		// Its answer is behind what still gets through.
		return verdict{wait: true, again: earlier(l.LastSign().Add(t.TCPGrace), last)}
	case l.PeerLives():
		return verdict{wait: true, again: earlier(now.Add(t.TCPGrace), last)}
	}
	return verdict{}
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}
	return a
}
