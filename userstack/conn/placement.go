// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/userstack/wire"
)

// Linux, and an urgent byte that its consumer cursor never steps over.
//
// Linux (seen with 6.12; net/smc/smc_rx.c, smc_cdc.c, smc_tx.c) does not count an
// urgent byte as data, unless SO_OOBINLINE is set. Its consumer cursor steps over
// the byte in the call of recv that gets there. This does not happen if a program
// reads all data before the byte and then takes the byte with MSG_OOB: the cursor
// stays before the byte for good. The byte is stuck. Linux counts the data behind a
// stuck byte correctly, but reads it from the cursor, which now is one byte behind:
// the program would get the urgent byte as data, and never the last byte.
//
// So a stuck byte must not be waited for, and the data behind it goes where the
// kernel will read it: over the urgent byte. The producer cursor moves as always.
// The place of a byte is lag bytes before the one that the cursor says; lag is the
// number of stuck bytes.
//
// That a byte is stuck has to be known for certain, because in a kernel that still
// steps over it the program would read other bytes. A cursor before the byte does
// not prove it: a reader with SO_OOBINLINE also stops there. A message that says
// nothing new at all does, with the cursor before the byte, after the byte was
// announced together with a request for the cursor (R). Linux answers such a request
// when its program next takes something (and not before, since Linux 5.18), and
// MSG_OOB is the only call that takes something without moving the cursor. That the
// cursor is before the byte is known from an earlier message. To get one, the first
// data after a quiet time requests the cursor too.
//
// A kernel that answers requests at once would send the same message. To find that
// out, the request is repeated. A kernel that answers the second one too is asked no
// more, and nothing is sent behind the urgent byte. Nor is anything concluded once
// the peer has moved the connection to another link: it repeats messages then.
//
//	stuck     | event                                  | stuck     | action
//	----------+----------------------------------------+-----------+-------
//	unknown   | U sent                                 | unknown   | R
//	unknown   | nothing new, cursor before U           | suspected | R alone
//	suspected | R delivered                            | suspected | timer answerWait
//	suspected | nothing new, cursor before U           | unknown   | never again
//	suspected | timer                                  | certain   |
//	certain   | data waits behind U                    | unknown   | lag + 1, go on
//	any       | cursor behind U                        | unknown   | go on
//
// If one byte is stuck, all later ones are handled without a question: the program
// never reads up to the place before an urgent byte until lag bytes behind it are
// there, and the call of recv that takes these steps over it. So lag bytes go out
// behind an urgent byte before its confirmation. If the next urgent byte comes before
// there are so many, the one before is stuck as well, and lag grows.

const (
	// quietData is the time without data after which the next message requests
	// the consumer cursor.
	quietData = 10 * time.Millisecond
	// answerWait is how long an answer to the repeated request may take after
	// the request has been delivered.
	answerWait = 200 * time.Millisecond
)

// stuck is what is known of the urgent byte to be confirmed.
type stuck uint8

const (
	stuckUnknown stuck = iota
	stuckSuspected
	stuckCertain
)

// placement decides where the bytes behind an urgent byte go. For a peer without
// [Peer.StopsAtUrgent] it stays at its zero value, which is the placement of the RFC.
type placement struct {
	lag       uint64 // how many bytes are stuck
	stuck     stuck
	requested bool      // the cursor was requested and has not moved since
	urgent    bool      // an urgent byte was sent
	prompt    bool      // the peer answers a request before its program reads
	repeat    bool      // a message with a request is to be sent
	repeated  bool      // it was sent
	repeatSeq uint16    // and has this number
	dataAt    time.Time // last data sent
	timer     timer     // the repeated request has no answer
}

// set notes what is known of the urgent byte.
func (p *placement) set(s stuck) { p.stuck, p.repeat, p.repeated = s, false, false }

// reset forgets what is known of the urgent byte.
func (p *placement) reset() {
	p.set(stuckUnknown)
	p.timer.stop()
}

// place returns the position of the peer's element at which the byte at pos of the
// stream is written. mark is the urgent mark to be confirmed.
func (p *placement) place(pos, mark uint64) uint64 {
	if p.lag > 0 && mark != 0 && pos >= mark {
		pos-- // the peer has not stepped over the urgent byte yet
	}
	return pos - p.lag
}

// request returns the R flag if a message that takes the producer cursor n bytes
// further requests the peer's consumer cursor. waits tells whether an urgent byte is
// not confirmed, seq is the number of the message.
func (p *placement) request(now time.Time, n int, waits bool, seq uint16) wire.ProducerFlags {
	if p.lag > 0 {
		return 0
	}
	quiet := false
	if n > 0 {
		quiet = now.Sub(p.dataAt) >= quietData
		p.dataAt = now
	}
	if p.repeat {
		p.repeat, p.repeated, p.repeatSeq = false, true, seq
	}
	switch {
	case waits:
		// Each message, since the last one counts.
		p.urgent, p.requested = true, true
	case quiet, n > 0 && p.urgent:
		p.requested = true
	case p.urgent:
		// The answer could be taken for one of the next urgent byte.
		return 0
	}
	if p.requested {
		return wire.ProdCursorRequest
	}
	return 0
}

// receive looks at a message of the peer. moved tells whether it took the consumer
// cursor further, news whether it says anything else that is new, before whether the
// cursor is before an urgent byte that is not confirmed.
func (p *placement) receive(moved, news, before bool) {
	if moved {
		p.requested = false
	}
	if moved || news || p.lag > 0 {
		return
	}
	switch {
	case p.requested && !p.urgent, before && p.stuck != stuckUnknown:
		p.reset()
		p.prompt = true
	case before:
		p.stuck, p.repeat = stuckSuspected, true
	}
}

// delivered takes note that message seq was delivered. It reports whether the timer
// is to be started.
func (p *placement) delivered(seq uint16) bool {
	if !p.repeated || seq != p.repeatSeq {
		return false
	}
	p.repeated = false
	return true
}

// timeout is the end of the wait for an answer to the repeated request. It reports
// whether the urgent byte is stuck.
func (p *placement) timeout() bool {
	if p.stuck != stuckSuspected {
		return false
	}
	p.set(stuckCertain)
	return true
}

// moved repeats a request that may not have been delivered over the link that the
// connection leaves.
func (p *placement) moved() {
	if p.stuck == stuckSuspected {
		p.reset()
		p.stuck, p.repeat = stuckSuspected, true
	}
}

// skip goes on behind a stuck byte: it is not waited for.
func (p *placement) skip() {
	p.lag++
	p.reset()
}
