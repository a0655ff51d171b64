// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/smc"
)

// A Flow is a connection of a program that both ends have announced, and that the stack holds: neither
// connect() nor accept() of the program has returned. LetGo, Split or Reset ends that.
//
//	state | packets of the peer | of the program            | next
//	------+---------------------+---------------------------+------------------------------
//	held  | wait in the stack   | are dropped: it sends the | outer exists: outer
//	      |                     | same again                |
//	outer | go to outer         | are dropped               | LetGo, Split, Reset: split
//	split | go to outer         | go to inner               | Finish, Reset: the kernel ends
//	      |                     |                           | both sockets, then forgotten;
//	      |                     |                           | after Splice also: see shift
//
// A new connection of the same tuple waits for the end of the Flow: see again.
type Flow struct {
	Tuple Tuple
	// Role is Client if the program connects.
	Role smc.Role
	// UID is the user of the program's socket, Cookie that socket itself (SO_COOKIE), Cgroup
	// the attached cgroup of it.
	UID    uint32
	Cookie uint64
	Cgroup uint64

	d        *Diverter
	account  uint32 // the user to whom it is charged
	via      bpfHop // by which it was announced
	isn      uint32
	from     bpfOrigin // of a server's peer
	slots    [6]uint32 // where a server's connection is counted until it is decided
	innerEnd end
	began    time.Duration // when this host announced the connection, as monotonic reports it
	held     time.Duration // when its first packet was held
	first    *frame        // what was held, for the program: let go, it ends its wait
	outer    *stream

	forgotten  bool        // guarded by d.mu: see forget
	wasHandled atomic.Bool // see handled

	isDecided atomic.Bool
	giving    sync.Mutex // for the bytes of first

	mu      sync.Mutex
	state   int
	waiting [][]byte // held frames for outer
	inner   *stream
	decides bool // Split was called
	over    bool // Finish or Reset was called
	spliced bool // Splice was called
	unheard bool // the program is to be reset, and its device takes nothing
	renewed bool // a new connection of the tuple waits for the end of this one
	own     own
}

// handled ends what frame has begun: Close waits for it no longer. Later calls do nothing.
func (f *Flow) handled() {
	if !f.wasHandled.Swap(true) {
		f.d.running.Done()
	}
}

// own is the device by which a program has sent last, and that by which its packets come since the stack has moved them.
type own struct {
	dev, moved uint32
	stranded   bool // packets did not pass in both directions, see reached
}

// maxWaiting bounds the frames that wait for outer: a peer has sent no more than its first window.
const maxWaiting = 64

// errNotItsEnd means that a held packet is not the one that ends a handshake: that comes next, or it is of an earlier connection.
var errNotItsEnd = errors.New("divert: not the end of a handshake")

// newFlow makes the Flow of a connection of which fr was held. It fails if the programs do not know it, and with errNotItsEnd.
func (d *Diverter) newFlow(fr frame) (*Flow, error) {
	var k bpfFlow
	if err := look(d.bpf.Flows, fr.tuple.key(), &k); err != nil {
		return nil, err
	}
	if !k.endsBy(fr.segment) {
		return nil, errNotItsEnd
	}
	mine, _, err := parseSegment(k.Own.B[:min(int(k.Own.Len), tcpMost)])
	if err != nil {
		return nil, err
	}
	f := &Flow{
		Tuple: fr.tuple, Role: smc.Client, UID: k.Uid, Cookie: k.Cookie, Cgroup: k.Cgroup,
		d: d, account: k.Account, via: k.Via, isn: k.Isn, began: time.Duration(k.Id >> 1), held: monotonic(),
	}
	fr.b = slices.Clone(fr.b)
	var inner, outer end
	if k.Server != 0 {
		f.Role, f.from, f.slots = smc.Server, k.From, k.Slots
		theirs, _, err := parseSegment(k.Peer.B[:min(int(k.Peer.Len), tcpMost)])
		if err != nil {
			return nil, err
		}
		inner, outer = ends(mine, theirs, &fr.segment)
		f.first = fr.header(outer.rcv, flagACK)
		if fr.hasPayload() {
			f.waiting = append(f.waiting, fr.to(forStack, 0))
		}
	} else {
		inner, outer = ends(mine, fr.segment, nil)
		f.first = &fr
	}
	f.innerEnd = inner
	f.outer = &stream{end: outer}
	return f, nil
}

// endsBy reports whether a held packet ends the handshake of k. It may be read after those that have come by another processor, and one of an
// earlier connection with the same addresses and ports after that is forgotten.
func (k *bpfFlow) endsBy(s segment) bool {
	wants := uint8(flagSYN | flagACK)
	if k.Server != 0 {
		wants = flagACK // perhaps with data
	}
	return k.Held != 0 && s.flags&(flagSYN|flagACK|flagRST) == wants && s.ack == k.Isn+1
}

// open makes outer, to which the peer's packets go from then on.
func (f *Flow) open() error {
	f.outer.end.tsAge = monotonic() - f.began
	if err := f.outer.connect(f.d.ns, f.Tuple); err != nil {
		return err
	}
	f.outer.control(waitsForAnswers)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begins(); err != nil {
		return err
	}
	for _, b := range f.waiting {
		f.d.write(b)
	}
	f.waiting = nil
	return nil
}

// begins has the peer's packets go to outer. Until now they are held, and nothing else of the entry is news but a device that the program
// notes again with its next packet: so there is nothing to be read first. mu is held.
func (f *Flow) begins() error {
	if f.over {
		return fmt.Errorf("divert: %w", net.ErrClosed)
	}
	w := bpfWay{State: wayOuter, Isn: f.isn, Via: f.via}
	if err := put(f.d.bpf.Ways, f.Tuple.key(), &w, ebpf.UpdateExist); err != nil {
		return fmt.Errorf("divert: where the packets of a connection go: %w", err)
	}
	f.state = wayOuter
	return nil
}

// splits has the program's packets go to inner. It returns the device by which the program has sent the last one. mu is held.
func (f *Flow) splits() (dev uint32, err error) {
	if f.over {
		return 0, fmt.Errorf("divert: %w", net.ErrClosed)
	}
	err = f.alter(func(w *bpfWay) bool {
		w.State, dev = waySplit, w.Via.Dev
		return true
	})
	if err == nil {
		f.state = waySplit
	}
	return dev, err
}

// alter alters where the packets go, unless how says that they go another way by now: then the error is ESTALE. The program may note
// another device at the same time, and does so again with the next packet. mu is held.
func (f *Flow) alter(how func(w *bpfWay) bool) error {
	key := f.Tuple.key()
	var w bpfWay
	err := look(f.d.bpf.Ways, key, &w)
	if err == nil && !how(&w) {
		err = unix.ESTALE
	}
	if err == nil {
		err = put(f.d.bpf.Ways, key, &w, ebpf.UpdateExist)
	}
	if err != nil {
		return fmt.Errorf("divert: where the packets of a connection go: %w", err)
	}
	return nil
}

// Outer returns the connection with the peer, as one of package net. Nobody else has it. Its Close does nothing that the peer
// sees before Finish or Reset. The error is net.ErrClosed after Reset, or wraps a syscall.Errno.
func (f *Flow) Outer() (*net.TCPConn, error) { return f.outer.tcp() }

// LendOuter lends the descriptor of the connection with the peer, which does not block, in place of Outer, until giveBack is called:
// that must be before Splice. revoke is called when the Flow ends before; it may call giveBack. The error is net.ErrClosed after Reset.
func (f *Flow) LendOuter(revoke func()) (fd int, giveBack func(), err error) {
	return f.outer.lend(revoke)
}

// Age returns how long ago this host announced the connection.
func (f *Flow) Age() time.Duration { return monotonic() - f.began }

// Finish ends a Flow after Split whose stream with the peer has ended: the kernel sends what is left.
// Likewise for the program, unless reset is set: then that sees a reset, behind what was written to inner.
func (f *Flow) Finish(reset bool) {
	inner, first := f.end()
	if !first {
		return
	}
	f.outer.finish()
	if reset {
		inner.drain()
		f.resetInner(inner)
	} else if !f.isUnheard() {
		inner.finish()
	}
	f.d.ends(f)
}

// ResetProgram resets the connection for the program, after Split, behind what was written to inner. Finish or Reset follows.
func (f *Flow) ResetProgram() {
	inner := f.program()
	inner.drain()
	f.resetInner(inner)
}

// isCarried reports whether the program's connection goes on by another path than that to the peer.
func (f *Flow) isCarried() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inner != nil && !f.spliced
}

// comesBy returns the device by which packets reach the program: the one by which it has sent the last one.
func (f *Flow) comesBy() uint32 {
	var w bpfWay
	if look(f.d.bpf.Ways, f.Tuple.key(), &w) != nil {
		return f.via.Dev
	}
	return w.Via.Dev
}

// resetInner resets the program's connection. Where it could not be aborted, and the device at which the program has it takes nothing,
// that waits for the device: a reset that is lost would leave the program waiting for ever.
func (f *Flow) resetInner(inner *stream) {
	f.d.resets(f)
	hears := f.d.sockets.aborts || inner.over() || f.d.delivers(f.comesBy()) // the program itself may have reset it
	if hears {
		inner.close()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unheard = true
}

func (f *Flow) isUnheard() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unheard
}

// heard resets the connection of a program that could not be reset before, if its device is up now.
func (f *Flow) heard(up func(dev uint32) bool) {
	if f.isUnheard() && up(f.comesBy()) {
		f.program().close()
		f.mu.Lock()
		f.unheard = false
		f.mu.Unlock()
	}
}

// Reset resets the connection for both programs. Later calls, and one after Finish, do nothing. A client's connect() has succeeded before
// the peer hears of it.
func (f *Flow) Reset() {
	if inner, first := f.end(); first {
		f.reset(inner)
	}
}

func (f *Flow) reset(inner *stream) {
	if has := inner != nil && !f.lost(inner); has {
		f.outer.close()
		f.resetInner(inner)
	} else {
		f.refuse()
		f.d.resets(f)
		f.outer.close()
	}
	f.d.ends(f)
}

// retryAfter is how long the packets of a connection that was reset may be on their way.
const retryAfter = 20 * time.Millisecond

// Retry resets a client's connection for the peer alone, before Split: the program goes on as if its
// SYN had been lost, and the connection that comes of the next one is TCP. If the program has its connection already, Retry is Reset.
func (f *Flow) Retry() {
	inner, first := f.end()
	if !first {
		return
	}
	if inner != nil && !f.lost(inner) {
		f.reset(inner)
		return
	}
	f.d.givenUp(f)
	f.outer.close()
	f.d.run("a connection that is made again", func() {
		time.Sleep(retryAfter)
		f.d.forget(f)
	})
}

// refuse resets the program's socket while it waits for what is held. A client's connect() succeeds
// first, as it would have over TCP: its peer has taken the connection. Its reset has no ACK: should the kernel drop what is let go, it would
// refuse connect().
func (f *Flow) refuse() {
	seq, flags := f.first.seq, uint8(flagRST|flagACK)
	if f.Role == smc.Client {
		f.letGo()
		seq, flags = seq+1, flagRST
	}
	f.give(f.first.header(seq, flags), f.comesBy())
}

// givenUp notes a connection of a client that goes on without the stack: the peer may still reset it (bpf/leaving.h, late).
func (d *Diverter) givenUp(f *Flow) {
	if err := d.bpf.GivenUp.Put(f.Tuple.key(), f.first.seq+1); err != nil {
		d.cfg.Log.Debug("cannot note that a connection was given up", "connection", f.Tuple, "err", err)
	}
}

// unmade reports whether it has ended without inner: nobody is there for the program.
func (f *Flow) unmade() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over && f.inner == nil
}

func (f *Flow) isOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over
}

// end ends the Flow. It returns inner, which is nil before Split, and whether the caller is the first.
func (f *Flow) end() (inner *stream, first bool) {
	f.decided()
	f.mu.Lock()
	defer f.mu.Unlock()
	first = !f.over
	f.over = true
	return f.inner, first
}

// program returns inner, or nil before Split.
func (f *Flow) program() *stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inner
}

// again takes the SYN of a new connection of the same tuple: of the program, or of the peer. near is
// the socket that the sender has had to do with, pass the way of a SYN that has its turn.
//
//	near         | then
//	-------------+----------------------------------------------------------------------------
//	is connected | it answers, as TCP does (RFC 5961, section 4): a sender that knows nothing
//	             | of the connection resets it, and asks again
//	is not made  | the program has given up: the connection is reset
//	is over      | SYN waits until the other socket is over, too, and passes: the new
//	             | connection is announced
func (f *Flow) again(fr frame, near *stream, pass byte) {
	if near != nil && !near.over() {
		f.d.write(fr.to(forStack, 0))
		return
	}
	f.mu.Lock()
	waits := f.renewed
	f.renewed = true
	f.mu.Unlock()
	if waits {
		return // for the same
	}
	b := slices.Clone(fr.to(pass, f.comesBy()))
	f.d.run("a connection of the same addresses and ports", func() {
		if near == nil {
			f.Reset()
		}
		const limit = 5 * time.Second // a SYN that is lost comes again
		for began := time.Now(); !f.past() && time.Since(began) < limit && f.d.ctx.Err() == nil; {
			time.Sleep(time.Millisecond)
		}
		if f.past() {
			f.d.forget(f)
			f.d.write(b)
		}
		f.mu.Lock()
		f.renewed = false
		f.mu.Unlock()
	})
}

// past reports whether the connection is over, and the kernel has nothing more to do for it.
func (f *Flow) past() bool {
	f.mu.Lock()
	over, inner := f.over, f.inner
	f.mu.Unlock()
	return over && f.outer.over() && inner.over()
}

// arrived takes another held frame.
func (f *Flow) arrived(fr frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
	case f.state != wayHeld:
		f.d.write(fr.to(forStack, 0))
	case len(f.waiting) < maxWaiting && fr.flags&flagSYN == 0:
		f.waiting = append(f.waiting, slices.Clone(fr.to(forStack, 0)))
	}
}
