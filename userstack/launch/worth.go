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

// To make a connection over SMC costs some milliseconds more than over TCP. Where
// many in a row had no use of it, the next ones to the same address are TCP from the
// start, and it is tried again from time to time:
//
//	state | event                                 | then
//	tries | noPeerRow connections in a row, each   | TCP until probeFirst is over
//	      | within rowGap of the one before, whose |
//	      | peer has no SMC                        |
//	tries | shortRow such connections that were    | TCP until probeFirst is over
//	      | over soon and carried little           |
//	TCP   | the time is over                       | one connection tries, the others wait
//	      |                                        | for its outcome as TCP
//	TCP   | it was of no use again                 | TCP: for probeFirst if the peer has no
//	      |                                        | SMC, else for twice the time as before,
//	      |                                        | up to probeLast
//	any   | a connection had a use of it           | tries
//
// A pause of forgetTime forgets everything.
const (
	noPeerRow = 8
	shortRow  = 32
	rowGap    = time.Second
	// shortBytes and shortLife are what a connection carries at most, in both
	// directions, and how long it is open at most, to be a short one.
	shortBytes = 256 << 10
	shortLife  = time.Second
	// littleBytes is what a connection of shortLife carries at most to be short
	// however long it took to be made: to make one and to end one waits for a machine
	// that is busy with that.
	littleBytes = 16 << 10
	// shortShare is how many times as long as it took to be made a connection that
	// is short is open at most, but shortOpen in any case. The first takes longer if
	// the machine is busy, as does what the connection is made for.
	shortShare = 3
	shortOpen  = 20 * time.Millisecond

	probeFirst = time.Second
	probeLast  = 32 * time.Second
	// probeTime is how long the outcome of a try is waited for.
	probeTime  = 10 * time.Second
	forgetTime = time.Minute
	// maxWorth bounds the addresses that are remembered.
	maxWorth = 1024
)

// outcome tells what SMC was to a connection.
type outcome uint8

const (
	useful outcome = iota
	noPeer         // the peer does not speak it
	short          // over before SMC could pay
)

// shortest is for how long a connection is short that took so long to be made.
func shortest(made time.Duration) time.Duration {
	return min(max(shortShare*made, shortOpen), shortLife)
}

// ending tells what SMC was to a connection that took so long to be made, was open for
// so long, and carried so many bytes.
func ending(made, open time.Duration, carried uint64) outcome {
	if carried < littleBytes && open < shortLife || carried < shortBytes && open < shortest(made) {
		return short
	}
	return useful
}

// note is the reason that the stack is told for TCP from the start.
func (o outcome) note() broker.NoteReason {
	if o == noPeer {
		return broker.NoteNoPeer
	}
	return broker.NoteShort
}

// reason is what the launcher counts.
func (o outcome) reason() string {
	if o == noPeer {
		return ReasonNoPeer
	}
	return ReasonShort
}

// worth remembers by destination whether SMC is of use. It reads no clock.
type worth struct {
	n atomic.Int32 // destinations that are TCP now

	mu    sync.Mutex
	dests map[netip.AddrPort]*dest
}

// dest is one destination.
type dest struct {
	kind  outcome // of the row
	row   int
	last  time.Time     // when the last one of the row was over, or TCP was chosen
	tcp   bool          // TCP from the start
	until time.Time     // the time of the next try
	pause time.Duration // the time between tries
	tries bool          // one is under way
}

// any tells, quickly, whether ask may say TCP of any address.
func (w *worth) any() bool { return w != nil && w.n.Load() > 0 }

// choice is what is to become of a connection.
type choice struct {
	tcp     bool    // TCP from the start
	because outcome // of the row, if tcp
	try     bool    // it tells whether the next ones are to be TCP
}

// now reports whether a connection to the address is to be TCP, and because of what, if
// it is not one that tries.
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

// ask tells what is to become of a connection to the address.
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

// learn takes note of what became of a connection.
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
			return // begun before TCP was chosen
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

func (w *worth) forget(to netip.AddrPort, d *dest) {
	if d.tcp {
		w.n.Add(-1)
	}
	delete(w.dests, to)
}

// makeRoom forgets what is too old to matter. It returns false if nothing is. mu is
// held.
func (w *worth) makeRoom(now time.Time) bool {
	for to, d := range w.dests {
		age := now.Sub(d.last)
		if age > forgetTime || !d.tcp && age > rowGap {
			w.forget(to, d)
		}
	}
	return len(w.dests) < maxWorth
}
