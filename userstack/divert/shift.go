// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
	"smcr/quota"
)

// A connection of which SMC was declined is carried (Splice) until no byte of it is with the stack. From then on its packets go between
// the program and the peer as those of any other connection, at the speed of the kernel: only the numbers of both streams differ,
// by what CLC has said, and the eBPF programs add that (bpf/shift.h). The stack has nothing more of it, and may end.
//
//	the connection            | then
//	--------------------------+---------------------------------------------------------------------------
//	rests for a moment        | nothing is to be read, nothing is not acknowledged: it is let go
//	never rests               | what comes loses its data, but not its acknowledgement, until all that had
//	                          | come before is acknowledged, for no longer than a few round trips: TCP
//	                          | sends it again, and the connection is let go
//	has been closed, or ends  | it is carried to its end
//
// What keeps this right: a socket of the stack has acknowledged no byte that the other end does not have. A packet that still reaches such
// a socket afterwards is as lost, because the answer does not leave. If a byte came just then, the stack goes on carrying.

const (
	// shiftAfter is how long a connection is carried at least. A shorter one is not worth the trouble.
	shiftAfter = 250 * time.Millisecond
	// shiftRests is how often a connection may not rest before its packets lose their data; shiftMost is the longest
	// wait between two tries, which doubles.
	shiftRests = 3
	shiftMost  = 30 * time.Second
	// frozenMost bounds the time without data, squeezedMost the one with a small receive buffer before, and frozenStep is that between two looks.
	frozenMost   = 250 * time.Millisecond
	squeezedMost = 2 * time.Second
	frozenStep   = 200 * time.Microsecond
	// outerReceive is the receive buffer of outer if it is carried on.
	outerReceive = 6 << 20
	// clockStep is what keeps the first timestamp of the peer behind the last one of the stack's socket.
	clockStep = 2
	// The keys of map shifter, as in shift.h.
	shifterOwner, shifterAny = uint32(0), uint32(1)
	// mostShifts is how many such connections there are in all, as in shift.h, and userShifts of one user other than root, who leaves as many for others: see quota.Fair.
	mostShifts = 16384
	userShifts = mostShifts / 16
)

// shift lets go of a spliced connection as soon as it can. It returns when that has been done, or done is closed.
func (f *Flow) shift(done <-chan struct{}, p *pipes) (shifted bool) {
	wait := shiftAfter
	for try := 0; ; try++ {
		timer := time.NewTimer(wait)
		select {
		case <-done:
			timer.Stop()
			return false
		case <-timer.C:
		}
		if try < shiftRests {
			shifted = f.d.shifts(f) && f.letRest(p)
		} else {
			shifted = f.d.shifts(f) && f.freeze(p, done, try-shiftRests)
			wait = min(2*wait, shiftMost)
		}
		f.d.cfg.Log.Debug("a declined connection is to pass", "connection", f.Tuple, "try", try, "passes", shifted)
		if shifted {
			return true
		}
	}
}

// shifts reports whether the packets of a connection may go on with other numbers.
func (d *Diverter) shifts(f *Flow) bool {
	d.mu.Lock()
	waits := d.given[f] != nil
	has := d.hasShift(f.account)
	d.mu.Unlock()
	return !waits && has && d.sockets.diag != nil && d.owns() && d.passesOnce(f.comesBy())
}

// hasShift reports whether there is room for one more connection of an account. mu is held.
func (d *Diverter) hasShift(account uint32) bool {
	return account == 0 || d.shifted.Fair(account, userShifts, mostShifts)
}

// freeze has what comes lose its data until the connection can be let go. Before that, it has outer receive no more than inner does: TCP may have
// let it grow to megabytes, which a program would not read in time. After so many tries before, it takes longer: programs may have to wait for a
// processor.
func (f *Flow) freeze(p *pipes, done <-chan struct{}, before int) (shifted bool) {
	f.outer.control(limitReceive)
	defer func() {
		if !shifted {
			f.outer.control(func(fd int) { setReceive(fd, outerReceive) })
		}
	}()
	if !until(done, squeezedMost, func() bool { return f.outer.unread() <= innerReceive }) || f.change(waySplit, wayFrozen) != nil {
		return false
	}
	if until(done, min(frozenMost, f.roundTrips()<<min(before, 4)), func() bool { return f.letRest(p) }) {
		return true
	}
	_ = f.change(wayFrozen, waySplit)
	return false
}

// until reports whether something comes true within a time, and before done is closed.
func until(done <-chan struct{}, most time.Duration, is func() bool) bool {
	limit := time.NewTimer(most)
	defer limit.Stop()
	next := time.NewTicker(frozenStep)
	defer next.Stop()
	for !is() {
		select {
		case <-next.C:
		case <-limit.C:
			return is()
		case <-done:
			return false
		}
	}
	return true
}

// roundTrips returns some round trips to the peer, and the time in which programs on a busy host read what inner has.
func (f *Flow) roundTrips() time.Duration {
	most := 50 * time.Millisecond
	f.outer.info(func(i *unix.TCPInfo) { most += 4 * time.Duration(i.Rtt) * time.Microsecond })
	return most
}

// change changes the state of the way of a connection that is split.
func (f *Flow) change(from, to uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alter(func(w *bpfWay) bool {
		is := !f.over && w.State == from
		w.State = to
		return is
	})
}

// position is where the two streams of a socket of the stack are.
type position struct{ sent, received uint32 }

// rests returns the position of a socket of which all that was sent is acknowledged, and all that came was read.
func (s *stream) rests() (at position, rests bool) {
	s.control(func(fd int) {
		_ = atonce.SetInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // the acknowledgement that it still delays
		in, err1 := unix.IoctlGetInt(fd, unix.SIOCINQ)
		out, err2 := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		info, err3 := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if errors.Join(err1, err2, err3) != nil || in != 0 || out != 0 || info.State != unix.BPF_TCP_ESTABLISHED {
			return
		}
		at = position{s.end.snd + uint32(info.Bytes_acked), s.end.rcv + uint32(info.Bytes_received)}
		rests = true
	})
	return at, rests
}

// clock returns the timestamp with which the socket goes on.
func (s *stream) clock() (now uint32) {
	s.control(func(fd int) {
		v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_TIMESTAMP)
		if err == nil {
			now = uint32(v)
		}
	})
	return now + clockStep
}

// unread returns how many bytes wait to be read.
func (s *stream) unread() (n int) {
	s.control(func(fd int) { n, _ = unix.IoctlGetInt(fd, unix.SIOCINQ) })
	return n
}

// letRest lets go of a connection if it rests. It reports whether the stack has nothing more of it.
func (f *Flow) letRest(p *pipes) bool {
	if !p.stop() {
		return false
	}
	defer p.goOn()
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.d.flows[f.Tuple] != f {
		return false
	}
	outer, ok1 := f.outer.rests()
	inner, ok2 := f.inner.rests()
	key := f.Tuple.key()
	var w bpfWay
	var k bpfFlow
	if !ok1 || !ok2 || look(f.d.bpf.Ways, key, &w) != nil || look(f.d.bpf.Flows, key, &k) != nil {
		return false
	}
	by := bpfShift{Out: outer.sent - inner.received, In: inner.sent - outer.received, Isn: f.isn, Uid: f.account, Dev: w.Via.Dev, Sent: outer.sent, Most: outer.sent, Received: outer.received}
	by.OutClock.Begin, by.InClock.Begin = f.outer.clock(), f.inner.clock()
	if f.d.bpf.Shifter.Put(shifterAny, uint32(1)) != nil || put(f.d.bpf.Shifts, key, &by, ebpf.UpdateNoExist) != nil {
		return false
	}
	f.d.withdraw([]bpfTuple{key}, []bpfFlow{{Account: f.account, Held: 1}}) // from now on, the packets go by the way of Shifts
	o, ok1 := f.outer.rests()
	i, ok2 := f.inner.rests()
	if !ok1 || !ok2 || o != outer || i != inner {
		w.State = waySplit
		if put(f.d.bpf.Ways, key, &w, ebpf.UpdateNoExist) == nil {
			_ = drop(f.d.bpf.Shifts, key)
		}
		if put(f.d.bpf.Flows, key, &k, ebpf.UpdateNoExist) == nil {
			of := map[uint32]bpfCount{}
			add(of, &k, -1)
			f.d.recount(of)
		}
		return false
	}
	f.over = true
	delete(f.d.flows, f.Tuple)
	f.d.gone[0][f.Tuple] = f
	return true
}

// leave forgets a connection that was let go. What its sockets still send goes nowhere.
func (d *Diverter) leave(f *Flow) {
	f.outer.close()
	f.program().close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shifted.Add(f.account)
	delete(d.given, f)
}

// owns reports whether the packets of connections that were let go are changed by the programs of this stack.
func (d *Diverter) owns() bool {
	var owner uint32
	return d.bpf.Shifter.Lookup(shifterOwner, &owner) == nil && owner == d.mark
}

// own has the programs of this stack change the packets of the connections that were let go, also by stacks before it. They must be at all
// devices.
func (d *Diverter) own() error {
	if err := d.bpf.Shifter.Put(shifterOwner, d.mark); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	return nil
}

// sweepShifts forgets the connections that were let go and have ended: the kernel has no socket of them any more. It returns how many
// there are. Only the goroutine of d.sockets calls it.
func (d *Diverter) sweepShifts() (left int) {
	if !d.owns() || d.sockets.diag == nil {
		return 0
	}
	var users quota.Tally[uint32]
	var old []bpfTuple
	if err := each(d.bpf.Shifts, func(key *bpfTuple, by *bpfShift) {
		if state, err := d.sockets.state(socketID{tupleOf(*key), anyCookie, by.Dev}); errors.Is(err, unix.ENOENT) || err == nil && state == unix.BPF_TCP_LISTEN {
			old = append(old, *key)
			return
		}
		users.Add(by.Uid)
		left++
	}); err != nil {
		d.cfg.Log.Debug("cannot list the connections that pass", "err", err)
		left++ // they are there
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range old {
		_ = drop(d.bpf.Shifts, key)
	}
	d.shifted = users
	if left == 0 && len(d.flows) == 0 { // with a flow, one may just be let go
		_ = d.bpf.Shifter.Put(shifterAny, uint32(0))
	}
	return left
}

// sharedMaps are the maps that a stack goes on with that the ones before it had.
var sharedMaps = []string{bpfMapListeners, bpfMapShifts, bpfMapShifter}

// sharedBy returns those of the stacks before this one: the programs that run do not hand their sockets over again, and connections
// that were let go are nobody's.
func sharedBy(all []placed) map[string]*ebpf.Map {
	for _, f := range all {
		if f.side != egress {
			continue
		}
		if m, err := mapsOf(f.program, sharedMaps...); err == nil {
			return m
		}
	}
	return nil
}
