// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/userstack/wire"
)

// urgentMark is the urgent data that this side sends (RFC 7609, sections 4.7.5 and
// 4.7.6). The mark is a position in the stream, one past the urgent byte.
//
//	mark      | event                             | then
//	----------+-----------------------------------+------------------------------------
//	none      | urgent byte produced              | mark behind it
//	not sent  | another urgent byte produced      | the mark moves on, as that of TCP does
//	sent      | another urgent byte produced      | that one waits as next
//	any       | data up to the mark goes out      | in a message of its own, with the
//	          |                                   | flags UrgentPending, UrgentPresent
//	sent      | data waits behind the mark        | it is not written
//	sent      | the peer's consumer cursor is     | next becomes the mark
//	          | behind the mark                   |
//	sent      | nothing but the urgent byte is    | timer UrgentWait, then abort
//	          | unread, and data waits behind it  |
//
// Some Linux peers never move their consumer cursor over an urgent byte. The type
// placement deals with these.
type urgentMark struct {
	at    uint64 // 0 if there is none
	next  uint64 // the mark after it, 0 if there is none
	timer timer  // the peer has to confirm it
}

// set puts a mark behind what was produced. sent is the position up to which data
// has been written, also if it has to be written again.
func (u *urgentMark) set(produced, sent uint64) {
	if u.at == 0 || sent < u.at {
		u.at = produced
	} else {
		u.next = produced
	}
}

// pass goes on to the next mark.
func (u *urgentMark) pass() {
	u.at, u.next = u.next, 0
	u.timer.stop()
}

// waits reports whether the urgent byte was written and is not confirmed.
func (u *urgentMark) waits(written uint64) bool { return u.at != 0 && written >= u.at }

// limit returns the position up to which data may be written. behind is how many
// bytes may follow an urgent byte that is not confirmed.
func (u *urgentMark) limit(produced, delivered, behind uint64) uint64 {
	switch {
	case u.at == 0:
		return produced
	case delivered < u.at:
		return u.at // after failover the mark must be repeated alone
	case u.next != 0:
		return min(u.at+behind, u.next-1)
	}
	return min(u.at+behind, produced)
}

// flags returns the urgent flags of a message that takes the producer cursor n bytes
// further, to written.
func (u *urgentMark) flags(written uint64, n int) wire.ProducerFlags {
	switch {
	case written < u.at:
		return wire.ProdUrgentPending
	case n > 0 && written == u.at:
		// Once only: Linux takes a repetition for another urgent byte.
		return wire.ProdUrgentPending | wire.ProdUrgentPresent
	}
	return 0
}
