// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Linux and an urgent byte that it never steps over.
//
// Linux (seen with 6.12; net/smc/smc_rx.c, smc_cdc.c, smc_tx.c) does not count
// an urgent byte as data, unless SO_OOBINLINE is set, and has its consumer
// cursor step over the byte in the call of recv that gets there. A program that
// has read all before the byte and then takes it by MSG_OOB prevents that: the
// cursor stays before the byte for good. What comes later is counted rightly,
// but read from that cursor, which now is one behind. So the byte must not be
// waited for, and what follows belongs where the kernel will read: over the
// urgent byte. The producer cursor goes on as ever; from then on the place of a
// byte is lostByte.lag before the one that the cursor says.
//
// That such a byte is lost has to be known for certain, because in a kernel
// that still steps over it the program would read other bytes. A cursor before
// the byte does not say it: a reader with SO_OOBINLINE also stops there. What
// does is a message that says nothing new at all, with the cursor before the
// byte, after the byte was announced together with a request for the cursor (R).
// Linux answers such a request when its program next takes something (and not
// before, since Linux 5.18), and MSG_OOB is the only call that takes something
// without moving the cursor. That the cursor is before the byte is known from
// an earlier message. So that there is one, the first data after a silence asks
// for the cursor too.
//
// A kernel that answers requests at once would send the same message. To tell
// it, the request is repeated: who answers the second one too is asked no
// more, and nothing follows the urgent byte. Nor is anything concluded once the
// peer has moved the connection to another link: then it repeats messages.
//
//	known     | event                                  | known    | action
//	----------+----------------------------------------+----------+-------
//	nothing   | U sent                                 | nothing  | R
//	nothing   | nothing new, cursor before U           | perhaps  | R alone
//	perhaps   | R delivered                            | perhaps  | timer takenWait
//	perhaps   | nothing new, cursor before U           | nothing  | never again
//	perhaps   | timer                                  | certain  |
//	certain   | data waits behind U                    | nothing  | lag = 1, go on
//	any       | cursor behind U                        | nothing  | go on
//
// Once one byte is lost no other can be: the program never reads up to the place
// before an urgent byte until lag bytes behind it are there, and the call of
// recv that takes these steps over it. So lag bytes go out behind an urgent
// byte before the wait for its confirmation. If the next urgent byte comes before
// there are so many, the one before is lost as well, and lag grows.

const (
	// quietData is the silence in our data after which the next message
	// asks for the consumer cursor.
	quietData = 10 * time.Millisecond
	// takenWait is how long an answer to the repeated request may take
	// after the request has been delivered.
	takenWait = 200 * time.Millisecond
)

// knowledge is what is known of the urgent byte to be confirmed.
type knowledge uint8

const (
	nothingKnown knowledge = iota
	perhapsLost
	certainlyLost
)

// lostByte is what is known of urgent bytes that a Linux peer does not step
// over.
type lostByte struct {
	lag     uint64 // how many there are
	known   knowledge
	request bool      // the peer was asked for its cursor and has not moved it
	urged   bool      // an urgent byte was sent
	prompt  bool      // the peer answers a request before its program reads
	ask     bool      // a message with a request is to be sent
	asked   bool      // it was sent
	askSeq  uint16    // and has this number
	dataAt  time.Time // last data sent
}

// byte notes what is known of the urgent byte.
func (b *lostByte) byte(k knowledge) { b.known, b.ask, b.asked = k, false, false }

// losesBytes says that the peer is a Linux that is known to do that: release 1
// of version 2 came with Linux 6.7.
func (c *Conn) losesBytes() bool {
	cfg := &c.g.cfg
	return c.g.v2() && cfg.PeerOS == smc.OSLinux && cfg.PeerRelease >= wire.ReleaseV21 && !c.lost.prompt
}

// slot returns the position of the peer's element at which the byte at pos of
// the stream is placed.
func (c *Conn) slot(pos uint64) uint64 {
	if c.lost.lag > 0 && c.utx != 0 && pos >= c.utx {
		pos-- // the peer has not stepped over the urgent byte yet
	}
	return pos - c.lost.lag
}

// cursorRequest returns the R flag if a message that takes the producer cursor n
// bytes further to where it stands now asks for the peer's consumer cursor.
func (c *Conn) cursorRequest(n int) wire.ProducerFlags {
	b := &c.lost
	ask := b.ask
	b.ask = false
	if !c.losesBytes() || b.lag > 0 || c.aborting {
		return 0
	}
	quiet := false
	if n > 0 {
		quiet = c.g.now.Sub(b.dataAt) >= quietData
		b.dataAt = c.g.now
	}
	if ask {
		b.asked, b.askSeq = true, c.seq+1
	}
	switch {
	case c.urgentWaits():
		// Each message, since the last one counts.
		b.urged, b.request = true, true
	case quiet, n > 0 && b.urged:
		b.request = true
	case n == 0 && b.urged:
		// The answer could be taken for one of the next urgent byte.
		return 0
	}
	if b.request {
		return wire.ProdCursorRequest
	}
	return 0
}

// cursorTold looks at a message that took the cursors dp and dc bytes further.
func (c *Conn) cursorTold(f wire.ProducerFlags, news wire.StateFlags, dp, dc uint64) {
	b := &c.lost
	if dc > 0 {
		b.request = false
	}
	if dp > 0 || dc > 0 || f != 0 || news != 0 || c.moved || b.lag > 0 || !c.losesBytes() {
		return
	}
	switch before := c.urgentWaits() && c.pcons+1 == c.utx; {
	case b.request && !b.urged, before && b.known != nothingKnown:
		c.forget()
		b.prompt = true
	case before:
		b.known, b.ask = perhapsLost, true
	}
}

// heard takes note that message seq was delivered.
func (c *Conn) heard(seq uint16) {
	if b := &c.lost; b.asked && seq == b.askSeq && b.known == perhapsLost {
		b.asked = false
		c.takenAt = c.g.now.Add(takenWait)
		c.g.connTimer(c.takenAt)
	}
}

// silent is the end of the wait for an answer to the repeated request.
func (c *Conn) silent() {
	if c.lost.known == perhapsLost {
		c.lost.byte(certainlyLost)
		c.transmit()
	}
}

// askAgain repeats a request that was lost with a link.
func (c *Conn) askAgain() {
	if c.lost.known == perhapsLost {
		c.lost.byte(perhapsLost)
		c.lost.ask, c.takenAt = true, time.Time{}
	}
}

// forget gives up what is known of the urgent byte.
func (c *Conn) forget() {
	c.lost.byte(nothingKnown)
	c.takenAt = time.Time{}
}

// passLost goes on behind an urgent byte that the peer never steps over.
func (c *Conn) passLost() {
	b := &c.lost
	switch {
	case b.known == certainlyLost:
		if c.prep == c.utx || c.fin < c.utx || c.replay > 0 {
			return
		}
	case b.lag > 0 && c.utxNext != 0:
		// The next one comes before the peer can step over this one. That
		// costs a byte of the window, which is not to be eaten up.
		if c.urgentWaits() && c.sent == c.utxNext-1 && c.utxNext-1-c.utx < b.lag && c.fin == c.sent && b.lag < uint64(c.tx.size)/16 {
			break
		}
		return
	default:
		return
	}
	b.lag++
	c.forget()
	c.utx, c.utxNext = c.utxNext, 0
	c.urgentAt = time.Time{}
}
