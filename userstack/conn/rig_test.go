// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	peerToken = 0x7777
	elemSize  = 16384 // of both sides
	sendSize  = 4096
)

// rig is one connection. The test is its link group and its peer: it looks at every
// action and makes up every message.
type rig struct {
	t    *testing.T
	now  time.Time
	cfg  Config
	c    Conn
	mem  []byte
	acts []action // since the last look
	// outstanding are the receipts of messages that are neither delivered nor lost.
	outstanding []Receipt
	last        wire.CDC
	seq         uint16
	wakes       []Wake
	ended       []error
	chunks      map[*Chunk]bool
	noMemory    bool
	room        int
	linkDown    bool // the link of the connection is not active
	other       bool // there is another active link
	notOpen     bool // the first contact is not complete
	stays       bool // the link of a planned move is not active
	receivedAt  time.Time
	tests       int // of the link
	peerLives   bool
	left        bool      // the group
	peerWrites  bool      // the peer may still write to the element
	freed       bool      // the element was given back
	events      int       // that the group may have work after
	begun       time.Time // of the last event that the program caused
	armed       time.Time // what the group was told of a timer last
	noTurn      bool      // others wait for room on the link
	waits       int       // for room
	writes      int       // since the last message
}

// action is a message, or an RDMA WRITE if k is not nil.
type action struct {
	m          wire.CDC
	k          *Chunk
	off, n, at int
}

// settings change a rig.
type settings struct {
	autocork, chunk int
	eye             bool
	stopsAtUrgent   bool
	losesCursor     bool
	unopened        bool // the connection is not established
}

func newRig(t *testing.T, set settings) *rig {
	r := &rig{t: t, now: epoch, chunks: map[*Chunk]bool{}, room: 40, mem: make([]byte, elemSize), receivedAt: epoch}
	if set.autocork == 0 {
		set.autocork = DefaultAutocork
	}
	if set.chunk == 0 {
		set.chunk = DefaultChunk
	}
	r.cfg = Config{
		Timers: Timers{
			CloseWait: time.Minute, AbortWait: 10 * time.Second, UrgentWait: time.Minute,
			TCPGrace: 2 * time.Second, TCPGraceAlive: 10 * time.Second,
		},
		Peer: Peer{StopsAtUrgent: set.stopsAtUrgent, LosesCursor: set.losesCursor}, Autocork: set.autocork, Log: slog.New(slog.DiscardHandler),
	}
	eye := EyeNone
	if set.eye {
		eye = EyeUsed
	}
	r.c = New(&r.cfg, r, 0x1111, r.mem, eye, sendSize, set.chunk)
	if !set.unopened {
		r.c.p.Establish(Remote{Token: peerToken, Size: elemSize, Eye: set.eye})
	}
	return r
}

func (r *rig) Now() time.Time         { return r.now }
func (r *rig) Begin(now time.Time)    { r.begun = now }
func (r *rig) End()                   { r.events++ }
func (r *rig) SetTimer(at time.Time)  { r.armed = at }
func (r *rig) Wake(w Wake)            { r.wakes = append(r.wakes, w) }
func (r *rig) Closed(err error)       { r.ended = append(r.ended, err) }
func (r *rig) Open() bool             { return !r.notOpen }
func (r *rig) Ready() bool            { return !r.linkDown }
func (r *rig) Active() bool           { return !r.linkDown }
func (r *rig) TakeTurn() bool         { return !r.noTurn }
func (r *rig) AwaitRoom()             { r.waits++ }
func (r *rig) Room() int              { return r.room }
func (r *rig) TakePlanned() bool      { return !r.stays }
func (r *rig) TakeOther() bool        { r.linkDown = r.linkDown && !r.other; return r.other }
func (r *rig) LastMessage() time.Time { return r.receivedAt }
func (r *rig) LastSign() time.Time    { return r.receivedAt }
func (r *rig) Test()                  { r.tests++ }
func (r *rig) PeerLives() bool        { return r.peerLives }

func (r *rig) FreeElement(time.Time) {
	if r.freed {
		r.t.Fatal("the element is given back twice")
	}
	r.freed = true
}

func (r *rig) Leave(peerMayWrite bool) bool {
	if r.left {
		r.t.Fatal("the connection leaves the group twice")
	}
	r.left, r.peerWrites = true, peerMayWrite
	return true
}

var errNoMemory = errors.New("no memory")

func (r *rig) NewChunk(size int) (*Chunk, error) {
	if r.noMemory {
		return nil, errNoMemory
	}
	k := &Chunk{Mem: make([]byte, size)}
	r.chunks[k] = true
	return k, nil
}

func (r *rig) FreeChunk(k *Chunk) {
	if !r.chunks[k] {
		r.t.Fatal("chunk freed twice")
	}
	if k.next != nil {
		r.t.Fatal("a chunk that is given back refers to another one")
	}
	delete(r.chunks, k)
}

func (r *rig) Write(k *Chunk, off, n, at int) {
	r.writes++
	r.acts = append(r.acts, action{k: k, off: off, n: n, at: at})
}

func (r *rig) Send(m wire.CDC, requests int, receipt Receipt) {
	if m.Token != peerToken || requests > r.room || requests != r.writes+1 {
		r.t.Fatalf("%d requests, message %+v", requests, m)
	}
	r.writes = 0
	const flags = wire.ProdWriterBlocked | wire.ProdUrgentPending | wire.ProdUrgentPresent | wire.ProdCursorRequest | wire.ProdFailoverVerify
	if m.Flags&^flags != 0 || m.State&^(wire.ConnSendingDone|wire.ConnClosed|wire.ConnAbnormalClose) != 0 {
		r.t.Fatalf("reserved flags in message %+v", m)
	}
	r.last = m
	r.acts = append(r.acts, action{m: m})
	r.outstanding = append(r.outstanding, receipt)
}

// describe names a message by its flags.
func describe(m wire.CDC) string {
	s := "cdc"
	for _, f := range []struct {
		on   bool
		name string
	}{
		{m.Flags&wire.ProdFailoverVerify != 0, "F"}, {m.Flags&wire.ProdWriterBlocked != 0, "B"},
		{m.Flags&wire.ProdUrgentPending != 0, "P"}, {m.Flags&wire.ProdUrgentPresent != 0, "U"}, {m.Flags&wire.ProdCursorRequest != 0, "R"},
		{m.State&wire.ConnSendingDone != 0, "D"}, {m.State&wire.ConnClosed != 0, "C"}, {m.State&wire.ConnAbnormalClose != 0, "A"},
	} {
		if f.on {
			s += "+" + f.name
		}
	}
	return s
}

// sent returns what was sent since the last call, one word a message.
func (r *rig) sent() string {
	var out []string
	for _, a := range r.acts {
		if a.k == nil {
			out = append(out, describe(a.m))
		}
	}
	r.acts = nil
	return strings.Join(out, " ")
}

func (r *rig) expect(want string) {
	r.t.Helper()
	if got := r.sent(); got != want {
		r.t.Fatalf("sent %q, want %q", got, want)
	}
}

// deliver completes what has been sent until now.
func (r *rig) deliver() {
	now := r.outstanding
	r.outstanding = nil
	for _, receipt := range now {
		r.c.p.Delivered(receipt)
	}
}

// done completes everything.
func (r *rig) done() {
	for len(r.outstanding) > 0 {
		r.deliver()
	}
}

// fail puts the connection on another link. What is outstanding is lost.
func (r *rig) fail() {
	lost := r.outstanding
	r.acts, r.outstanding = nil, nil
	for _, receipt := range lost {
		r.c.p.Undelivered(receipt)
	}
	r.c.p.Moved()
}

func (r *rig) recv(m wire.CDC) {
	r.t.Helper()
	r.receivedAt = r.now
	r.c.p.Receive(m)
	r.check()
}

func (r *rig) check() {
	r.t.Helper()
	if r.left {
		return
	}
	if err := r.c.p.Check(); err != nil {
		r.t.Fatal(err)
	}
}

// wait lets fake time pass.
func (r *rig) wait(d time.Duration) {
	end := r.now.Add(d)
	for {
		at, ok := r.c.p.Deadline()
		if !ok || at.After(end) {
			break
		}
		r.now = at
		r.c.p.Tick(r.now)
	}
	r.now = end
}

// cdc makes a message of the peer that changes nothing but flags.
func (r *rig) cdc() wire.CDC {
	r.seq++
	return wire.CDC{Seq: r.seq, Token: r.c.Token(), Prod: r.rx(r.at().Received), Cons: r.tx(r.at().PeerRead)}
}

func (r *rig) at() Positions             { return r.c.Positions() }
func (r *rig) rx(pos uint64) wire.Cursor { return r.c.p.in.elem.cursor(pos) }
func (r *rig) tx(pos uint64) wire.Cursor { return r.c.p.out.elem.cursor(pos) }
func (r *rig) state() smc.ConnState      { return r.c.State() }

// give makes the peer write n bytes and announce them.
func (r *rig) give(n int, flags wire.ProducerFlags) {
	r.t.Helper()
	m := r.cdc()
	m.Prod = r.rx(r.at().Received + uint64(n))
	m.Flags = flags
	r.recv(m)
}

// got makes the peer read n bytes and say so.
func (r *rig) got(n int) {
	r.t.Helper()
	m := r.cdc()
	m.Cons = r.tx(r.at().PeerRead + uint64(n))
	r.recv(m)
}

// flag makes the peer send a message with a state flag.
func (r *rig) flag(f wire.StateFlags) {
	r.t.Helper()
	m := r.cdc()
	m.State = f
	r.recv(m)
}

// send produces n bytes of whatever is in the send memory.
func (r *rig) send(n int) {
	_, _, _ = r.c.SendSpace(n, n)
	r.c.Produced(r.now, n)
	r.check()
}

// urge produces n bytes of which the last is urgent.
func (r *rig) urge(n int) {
	_, _, _ = r.c.SendSpace(n, n)
	r.c.ProducedUrgent(r.now, n)
	r.check()
}
