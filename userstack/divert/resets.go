// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
)

// A program hears what became of its connection within the time that SMC-R needs to find it, whatever became of the device. inner's
// reset is a packet, and can be lost between inner and the program's socket: the device is down, gone, in another namespace or made
// again, its address is not there any more, another route has the kernel drop what comes by it, a firewall does. Over TCP a
// program would then wait, for its peer may come back; here the peer's end is known to be gone. So a reset is not believed: the
// stack looks for the program's socket, by its cookie, and aborts the connection if that has not heard. That needs no device, address or route.
//
//	the program's socket              | then
//	----------------------------------+----------------------------------------------------------------
//	is not there, or another one is   | it has heard, or the program has closed it
//	is in TIME_WAIT                   | likewise: nothing is to be heard
//	connects, and inner was not made  | nothing: TCP sends SYN again, and what comes of that is TCP
//	is the request of a server        | is dropped: what the peer has said to the stack, and says again, would make it a
//	                                  | connection, and be data for the program
//	is anything else                  | inner's reset comes once more, if the device takes packets now; later, or if it
//	                                  | does not, the connection is aborted: ECONNABORTED, as no packet says ECONNRESET
//	is not known: no sock_diag        | a reset that may have overtaken what was sent before it comes some times more
//
// Such a reset is looked at sooner than others, and may come once more than they. Where the kernel cannot abort (sockets.aborts), it comes
// some times more, and inner stays until the device is there and up: see Flow.resetInner.

const (
	// resetTime is how long after a reset its program must have heard: that of the packet, and of whoever still has inner.
	resetTime = 2 * sweepEvery
	// resetSoon is that of one that may have overtaken what was sent before it.
	resetSoon = sweepEvery / 10
	// onlyResets is how often one comes again after which nothing else can be done.
	onlyResets = 5
	// resetsMost is how many programs are looked for at a time.
	resetsMost = 4096
)

// A reset is one of a program's connection.
type reset struct {
	tuple Tuple
	devs  [2]uint32 // the program's socket may be bound to one of these devices
	split bool      // inner was made, or the program is a server
	again *frame    // inner's reset, or nil
	more  int       // how often it may be sent again
	due   time.Time
}

// resets has the program of f hear of its reset.
func (d *Diverter) resets(f *Flow) {
	now := time.Now()
	r := reset{tuple: f.Tuple, devs: [2]uint32{f.via.Dev, f.comesBy()}, split: f.Role == smc.Server || f.program() != nil, due: now.Add(resetTime)}
	if next, flying := f.program().flying(); next != 0 {
		r.again, r.more = f.first.header(next, flagRST|flagACK), 1
		if flying {
			r.more, r.due = 2, now.Add(resetSoon)
		}
		switch {
		case d.sockets.diag == nil && !flying:
			r.more = 0
		case !d.sockets.aborts:
			r.more = onlyResets
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.unsure[f.Cookie]; !known {
		d.unsure[f.Cookie] = r
	}
}

// sweepResets looks at the programs that were to hear of a reset until now.
func (d *Diverter) sweepResets(now time.Time) {
	d.mu.Lock()
	due := map[uint64]reset{}
	for cookie, r := range d.unsure {
		if len(due) == resetsMost {
			break
		}
		if !now.Before(r.due) {
			due[cookie] = r
		}
	}
	d.mu.Unlock()
	for cookie, r := range due {
		if !d.hasHeard(cookie, r) {
			continue
		}
		d.mu.Lock()
		delete(d.unsure, cookie)
		d.mu.Unlock()
	}
}

// hasHeard reports whether the program of a socket has heard of its reset, or nothing more can be done. It has it hear.
func (d *Diverter) hasHeard(cookie uint64, r reset) bool {
	devs := r.devs
	for _, dev := range slices.Compact(devs[:]) { // mostly there is one
		id := socketID{r.tuple, cookie, dev}
		switch state, err := d.sockets.state(id); {
		case errors.Is(err, errors.ErrUnsupported): // nobody knows
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
			continue // with the other device
		case err != nil:
			return false // it is asked again
		case !r.waits(state):
			return true
		}
		if r.more > 0 && d.delivers(r.devs[1]) {
			d.resetAgain(cookie, r)
			return false
		}
		if !d.sockets.aborts {
			return true
		}
		err := d.sockets.abort(id)
		d.cfg.Log.Debug("a reset does not reach its program, whose connection is aborted", "connection", r.tuple, "err", err)
		return err == nil
	}
	return true
}

// resetAgain sends a reset that has not reached its program again.
func (d *Diverter) resetAgain(cookie uint64, r reset) {
	d.write(r.again.to(forProgram, r.devs[1]))
	r.more, r.due = r.more-1, time.Now().Add(resetTime)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unsure[cookie] = r
}

// waits reports whether a program waits whose socket is in a TCP state.
func (r *reset) waits(state uint8) bool {
	switch state {
	case unix.BPF_TCP_LISTEN, unix.BPF_TCP_TIME_WAIT, unix.BPF_TCP_CLOSE:
		return false
	case unix.BPF_TCP_SYN_SENT, unix.BPF_TCP_SYN_RECV, unix.BPF_TCP_NEW_SYN_RECV:
		return r.split
	}
	return true
}

// lastResets has the programs hear whose connections the end of the Diverter has reset. It comes after the last sweep.
func (d *Diverter) lastResets() {
	d.mu.Lock()
	n := len(d.unsure)
	for cookie, r := range d.unsure {
		r.more = 0
		d.unsure[cookie] = r
	}
	d.mu.Unlock()
	if n == 0 {
		return
	}
	time.Sleep(resetTime / 10) // the packets are on their way for microseconds
	for ; n > 0; n -= resetsMost {
		d.sweepResets(time.Now().Add(resetTime))
	}
}
