// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"smcr/userstack/broker"
)

// A connection over SMC takes some milliseconds longer to make than one over TCP. If
// SMC was not useful for many connections in a row, the next connections to the same
// address are TCP from the start. From time to time, one connection tries SMC again:
//
//	state | event                                  | new state
//	tries | noPeerRow connections in a row whose   | TCP for the time probeFirst
//	      | peer has no SMC                        |
//	tries | shortRow short connections in a row    | TCP for the time probeFirst
//	TCP   | the time is over                       | TCP, but one connection tries SMC
//	TCP   | the peer of that one has no SMC        | TCP for the time probeFirst
//	TCP   | that one was short                     | TCP for twice the last time, but no
//	      |                                        | longer than probeLast
//	any   | SMC was useful for a connection        | tries
//
// In a row, no more than rowGap passes from one connection to the next.
//
// If there is no connection to an address for forgetTime, its entry is removed.
const (
	noPeerRow = 8
	shortRow  = 32
	rowGap    = time.Second
	// A short connection carries less than shortBytes, in both directions
	// together, and is open for less than shortLife.
	shortBytes = 256 << 10
	shortLife  = time.Second
	// A connection that carries less than littleBytes within shortLife is
	// short, no matter how long it took to make it: on a busy machine, connections
	// take long to make and to end.
	littleBytes = 16 << 10
	// A connection that carries between littleBytes and shortBytes is short if
	// it is open for less than shortShare times the time that it took to make
	// it, or for less than shortOpen. Both times are longer on a busy machine.
	shortShare = 3
	shortOpen  = 20 * time.Millisecond

	probeFirst = time.Second
	probeLast  = 32 * time.Second
	// probeTime is how long other connections wait for the outcome of a try.
	probeTime  = 10 * time.Second
	forgetTime = time.Minute
	// maxWorth is the largest number of addresses in the table.
	maxWorth = 1024
)

// outcome says whether SMC was useful for a connection.
type outcome uint8

const (
	useful outcome = iota
	noPeer         // the peer has no SMC
	short          // the connection was short
)

// shortest returns how long a connection may be open to be short, if it took
// made to make it.
func shortest(made time.Duration) time.Duration {
	return min(max(shortShare*made, shortOpen), shortLife)
}

// ending returns the outcome of a connection that took made to make, was open
// for open, and carried carried bytes.
func ending(made, open time.Duration, carried uint64) outcome {
	if carried < littleBytes && open < shortLife || carried < shortBytes && open < shortest(made) {
		return short
	}
	return useful
}

// note returns the reason for TCP from the start that the stack is told.
func (o outcome) note() broker.NoteReason {
	if o == noPeer {
		return broker.NoteNoPeer
	}
	return broker.NoteShort
}

// reason returns the reason for TCP that the launcher counts.
func (o outcome) reason() string {
	if o == noPeer {
		return ReasonNoPeer
	}
	return ReasonShort
}

// worth records for each destination whether SMC is useful. It reads no clock.
type worth struct {
	n atomic.Int32 // destinations that are TCP now

	mu    sync.Mutex
	dests map[netip.AddrPort]*dest
}

// dest is one destination.
type dest struct {
	kind  outcome       // of all connections of the row
	row   int           // number of connections in a row
	last  time.Time     // when the last connection of the row ended, or TCP was chosen
	tcp   bool          // TCP from the start
	until time.Time     // the time of the next try
	pause time.Duration // the time between tries
	tries bool          // a connection tries SMC now
}

// any reports, without a lock, whether ask may return TCP for any address.
func (w *worth) any() bool { return w != nil && w.n.Load() > 0 }

// choice says how a connection must be made.
type choice struct {
	tcp     bool    // TCP from the start
	because outcome // why TCP, if tcp is set
	try     bool    // others wait, as TCP, for the outcome of this connection
}

// now reports whether a connection to the address must be TCP, and the reason.
// It returns false if the connection may try SMC.
func (w *worth) now(now time.Time, to netip.AddrPort) (because outcome, tcp bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stays(now, to)
}

// stays is now with mu held.
func (w *worth) stays(now time.Time, to netip.AddrPort) (because outcome, tcp bool) {
	d := w.dests[to]
	if d == nil || !d.tcp || !now.Before(d.until) || now.Sub(d.last) > forgetTime {
		return useful, false
	}
	d.last = now
	return d.kind, true
}

// ask returns how a connection to the address must be made.
func (w *worth) ask(now time.Time, to netip.AddrPort) choice {
	w.mu.Lock()
	defer w.mu.Unlock()
	if because, tcp := w.stays(now, to); tcp {
		return choice{tcp: true, because: because}
	}
	d := w.dests[to]
	switch {
	case d == nil || !d.tcp:
		return choice{}
	case now.Sub(d.last) > forgetTime:
		w.forget(to, d)
		return choice{}
	}
	d.last, d.tries, d.until = now, true, now.Add(probeTime)
	return choice{try: true}
}

// learn records the outcome of a connection.
func (w *worth) learn(now time.Time, to netip.AddrPort, o outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.dests[to]
	if o == useful {
		if d != nil {
			w.forget(to, d)
		}
		return
	}
	if d == nil {
		if len(w.dests) >= maxWorth && !w.makeRoom(now) {
			return
		}
		if w.dests == nil {
			w.dests = make(map[netip.AddrPort]*dest)
		}
		d = &dest{}
		w.dests[to] = d
	}
	if d.tcp {
		if !d.tries {
			return // this connection began before TCP was chosen
		}
		if d.kind != o {
			d.kind, d.pause = o, 0
		}
		w.choose(now, d)
		return
	}
	if d.kind != o || now.Sub(d.last) > rowGap {
		d.kind, d.row = o, 0
	}
	d.last = now
	d.row++
	if o == noPeer && d.row >= noPeerRow || o == short && d.row >= shortRow {
		w.n.Add(1)
		d.tcp = true
		w.choose(now, d)
	}
}

// choose makes d TCP until the next try. mu is held.
func (w *worth) choose(now time.Time, d *dest) {
	d.last, d.tries = now, false
	if d.pause = min(2*d.pause, probeLast); d.pause == 0 || d.kind == noPeer {
		d.pause = probeFirst
	}
	d.until = now.Add(d.pause)
}

// forget removes the entry of an address. mu is held.
func (w *worth) forget(to netip.AddrPort, d *dest) {
	if d.tcp {
		w.n.Add(-1)
	}
	delete(w.dests, to)
}

// makeRoom removes entries that are too old. It reports whether there is room
// now. mu is held.
func (w *worth) makeRoom(now time.Time) bool {
	for to, d := range w.dests {
		age := now.Sub(d.last)
		if age > forgetTime || !d.tcp && age > rowGap {
			w.forget(to, d)
		}
	}
	return len(w.dests) < maxWorth
}
