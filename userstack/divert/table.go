// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

const (
	// handshakeMost is how long after its first SYN or SYN-ACK a connection can still come into
	// being: the kernel's last try, with a second for the answer.
	handshakeMost = 130 * time.Second
	// expireEvery is the interval at which announced connections that came to nothing are removed.
	expireEvery = 10 * time.Second
	// sweepEvery is the interval between two looks at flows that end, and linger how long the
	// programs know one of which nothing is left: its last packets are on the way.
	sweepEvery = 100 * time.Millisecond
	linger     = time.Second
	// peerTime is how long the peer may take to end its side of a connection that has ended here.
	peerTime = time.Minute
	// aliveFor is how long the programs go on announcing after the last sweep, if the stack stands still. That it was
	// killed, they see when the kernel has removed its device.
	aliveFor = 2 * time.Second
)

// readFrames takes the packets that are held, until the Diverter is closed.
func (d *Diverter) readFrames() {
	r := newHeldReader()
	take := func(b []byte) {
		if fr, err := parseFrame(b); err == nil {
			d.frame(fr)
		}
	}
	var failed error
	err := d.held.raw.Read(func(fd uintptr) bool {
		failed = r.read(fd, take)
		if errors.Is(failed, unix.EAGAIN) {
			failed = nil
		}
		return failed != nil // or the next packet is an event
	})
	err = errors.Join(err, failed)
	if d.ctx.Err() == nil {
		d.cfg.Log.Error("cannot read held packets: no connection uses SMC-R any more", "err", err)
	}
}

// write sends a frame by the device of held packets. One that is lost comes again.
func (d *Diverter) write(b []byte) {
	_ = d.held.raw.Control(func(fd uintptr) { _, _ = atonce.Write(int(fd), b) })
}

// frame takes one held packet.
func (d *Diverter) frame(fr frame) {
	opens := fr.flags&(flagSYN|flagACK) == flagSYN
	d.mu.Lock()
	f, mine := d.flows[fr.tuple], d.flows[fr.tuple.reverse()]
	if opens && f == nil && mine == nil {
		d.passOn(fr)
	}
	d.mu.Unlock()
	switch {
	case mine != nil && fr.seq == mine.isn:
		if !mine.unmade() { // or it is another connection, when this one is forgotten
			mine.letGo() // the program asks again
		}
		return
	case mine != nil:
		mine.again(fr, mine.program(), forPeer)
		return
	case f != nil && opens:
		f.again(fr, f.outer, forProgram)
		return
	case f != nil:
		f.arrived(fr)
		return
	case opens:
		return // see passOn
	}
	f, err := d.newFlow(fr)
	if errors.Is(err, errNotItsEnd) {
		return
	}
	if err != nil {
		// It came to its end meanwhile: what holds its packets must not stay.
		_ = drop(d.bpf.Ways, fr.tuple.key())
		return
	}
	d.mu.Lock()
	closed := d.ctx.Err() != nil
	if !closed {
		d.flows[f.Tuple] = f
	}
	d.mu.Unlock()
	if closed {
		return
	}
	d.running.Add(1)
	if d.cfg.Guard.Do("a connection", func() { d.handle(f) }) != nil {
		f.Reset()
		f.handled()
	}
}

// handle has the user of the Diverter handle a Flow.
func (d *Diverter) handle(f *Flow) {
	if err := f.open(); err != nil {
		defer f.handled()
		if !errors.Is(err, net.ErrClosed) { // it has ended meanwhile
			d.cfg.Log.Warn("cannot take a connection", "connection", f.Tuple, "err", err)
		}
		f.Reset()
		return
	}
	d.cfg.Handle(d.ctx, f, f.handled)
}

// ends has f forgotten when the kernel has nothing more to do for it.
func (d *Diverter) ends(f *Flow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ending[f] = time.Now()
}

// lingering is a Flow for which the kernel has had nothing more to do since then.
type lingering struct {
	f     *Flow
	since time.Time
}

// forget removes flows, of which nothing is left, from the tables of the programs.
func (d *Diverter) forget(flows ...*Flow) {
	for _, f := range flows {
		f.outer.close()
		f.program().close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	keys, were := make([]bpfTuple, 0, len(flows)), make([]bpfFlow, 0, len(flows))
	for _, f := range flows {
		delete(d.ending, f)
		f.forgotten = true
		if d.flows[f.Tuple] == f {
			delete(d.flows, f.Tuple)
			d.gone[0][f.Tuple] = f
			keys, were = append(keys, f.Tuple.key()), append(were, bpfFlow{Account: f.account, Held: 1})
		}
	}
	d.withdraw(keys, were)
}

// withdraw removes connections from map flows, and then their ways. The programs begin no connection of a tuple that has a way, so what is
// removed is what was there, and not a new one, whose PROPOSAL would reach the program. A SYN that comes meanwhile is held: see passOn.
// mu is held.
func (d *Diverter) withdraw(keys []bpfTuple, were []bpfFlow) {
	d.remove(keys, were)
	removeAll(d.bpf.Ways, keys, nil)
}

// passOn has a SYN go on that was held as that of a connection which was just forgotten.
func (d *Diverter) passOn(fr frame) {
	for _, gone := range d.gone {
		if f := gone[fr.tuple]; f != nil {
			d.write(fr.to(forProgram, f.via.Dev))
			return
		}
		if f := gone[fr.tuple.reverse()]; f != nil {
			d.write(fr.to(forPeer, f.via.Dev))
			return
		}
	}
}

// sweep removes what has come to its end.
func (d *Diverter) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	expired := time.Now()
	for {
		select {
		case <-d.ctx.Done():
			return
		case now := <-tick.C:
			if err := d.live(); err != nil {
				d.cfg.Log.Error("cannot write to the eBPF programs: new connections stay TCP", "err", err)
				return
			}
			d.sweepEnding(now)
			d.ns.stock.topUp()
			if now.Sub(expired) >= expireEvery {
				expired = now
				d.expire()
				d.sweepShifts()
			}
		}
	}
}

// live says to the programs that the stack is alive.
func (d *Diverter) live() error {
	return d.bpf.States.Put(stateAlive, uint64(monotonic()+aliveFor))
}

func (d *Diverter) sweepEnding(now time.Time) {
	var past []*Flow
	known := map[uint32]bool{}
	up := func(dev uint32) bool {
		is, ok := known[dev]
		if !ok {
			is = d.delivers(dev)
			known[dev] = is
		}
		return is
	}
	d.sweepMoves(now, up)
	d.sweepGiven(now, up)
	d.sweepResets(now)
	d.mu.Lock()
	for f, since := range d.ending {
		if now.Sub(since) >= peerTime {
			f.outer.close() // the kernel ends it, as for programs that have ended
		}
		f.heard(up)
		if f.past() {
			delete(d.ending, f)
			past = append(past, f)
			d.lingers = append(d.lingers, lingering{f, now})
		}
	}
	over := d.lingered(now)
	d.gone[0], d.gone[1] = map[Tuple]*Flow{}, d.gone[0]
	d.mu.Unlock()
	for _, f := range past {
		if f.program().failed() {
			d.resets(f) // inner has ended, and the program does not know
		}
	}
	if len(over) > 0 {
		d.forget(over...)
	}
}

// lingered returns the flows that have lingered for their time, but for those that were forgotten before it, for a new connection of the
// tuple. mu is held.
func (d *Diverter) lingered(now time.Time) (over []*Flow) {
	n := 0
	for ; n < len(d.lingers) && now.Sub(d.lingers[n].since) >= linger; n++ {
		if f := d.lingers[n].f; !f.forgotten {
			over = append(over, f)
		}
	}
	d.lingers = slices.Delete(d.lingers, 0, n)
	return over
}

// monotonic returns the clock of the programs, which is that of CLOCK_MONOTONIC. Package time has it as well, and needs no system
// call for it, but hides its value.
func monotonic() time.Duration { return clock.at + time.Since(clock.began) }

var clock = func() (c struct {
	began time.Time
	at    time.Duration // when that was
}) {
	now := func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
		return time.Duration(t.Nano())
	}
	// This process may stand still in between: the shortest of some tries counts.
	best := time.Duration(-1)
	for range 10 {
		before, began := now(), time.Now()
		if took := now() - before; best < 0 || took < best {
			best, c.began, c.at = took, began, before
		}
	}
	return c
}()
