// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"smcr/userstack/wire"
)

// The simulation lets a client and a server rendezvous over a TCP connection in virtual
// time. Everything follows from the seed: delays, failures, who gives up and when.

// chooser makes the choices of a simulation: those of a seed (rand.Rand), or those of the
// fuzzer.
type chooser interface {
	IntN(n int) int
	Int64N(n int64) int64
}

// simWorld is the time, and what is to happen.
type simWorld struct {
	r     chooser
	now   time.Time
	queue simQueue
	seq   int
	sides [2]*simSide // client and server
	llc   [2]Event    // outcomes of CONFIRM LINK, if both sides get so far
	wait  [2]bool     // who waits for one
	gone  [2]bool     // whose CONFIRM LINK has timed out
	sound bool        // both hosts can do all that they are asked for
	met   bool        // both sides wait, and the outcomes are on their way
	known [2]bool     // who has the existing link group
	held  bool        // programs are held: see letgo.go
	note  []string
	wrong []error
	// tamper, if not nil, changes what is sent over TCP.
	tamper func(b []byte) []byte
}

// simSide is one host: its machine, and its end of the TCP connection.
type simSide struct {
	w      *simWorld
	name   string
	peer   *simSide
	m      *Machine
	delay  time.Duration // of what it sends
	unread []byte
	onWay  int  // bytes that the peer's TCP has not acknowledged
	eof    bool // the peer has reset TCP
	over   bool
	free   bool      // its program was let go
	acks   []func()  // of a client whose program is held: acknowledgements that are delayed
	stands time.Time // the process of this host stands still until then
	last   time.Time // when the last byte of what it has sent arrives
	ledger ledger
}

type simEvent struct {
	at  time.Time
	seq int
	f   func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any     { x := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return x }

func (w *simWorld) after(d time.Duration, f func()) {
	w.seq++
	heap.Push(&w.queue, simEvent{w.now.Add(d), w.seq, f})
}

func (w *simWorld) some(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d))) }

func newSimWorld(r chooser) *simWorld {
	w := &simWorld{r: r, now: start}
	w.held = w.r.IntN(2) == 0
	c := Config{PeerID: testOwn, ConfirmWait: 30 * time.Second, Held: w.held}
	w.sides[0] = &simSide{w: w, name: "client", m: NewClient(c), delay: w.some(400 * time.Millisecond)}
	w.sides[1] = &simSide{w: w, name: "server", m: NewServer(w.now, c), delay: w.some(400 * time.Millisecond)}
	w.sides[0].peer, w.sides[1].peer = w.sides[1], w.sides[0]
	group := w.r.IntN(2) == 0
	w.known = [2]bool{group && w.r.IntN(8) > 0, group}
	// A link group falls back on both sides, or it is too late for one of them (RFC 7609,
	// appendix C.2).
	fails, late := LLCFailed{failed(Failure{})}, LLCFailed{failed(Failure{NoFallback: true})}
	w.llc = [][2]Event{{LLCDone{}, LLCDone{}}, {LLCDone{}, LLCDone{}}, {fails, fails}, {late, LLCDone{}}, {LLCDone{}, late}, {fails, late}, {late, fails}}[w.r.IntN(7)]
	for _, s := range w.sides {
		if w.r.IntN(6) == 0 {
			w.after(w.some(3*time.Second), func() { s.happens(Canceled{errTest}) })
		}
		if w.r.IntN(12) == 0 {
			w.after(w.some(3*time.Second), func() { s.happens(Closed{errTest}) })
		}
	}
	return w
}

// runs calls f as soon as the process of this host runs, if the rendezvous is not over then.
func (s *simSide) runs(f func()) {
	if d := s.stands.Sub(s.w.now); d > 0 {
		s.w.after(d, func() { s.runs(f) })
		return
	}
	if !s.over {
		f()
	}
}

// happens hands an event to the machine, and carries out what follows.
func (s *simSide) happens(ev Event) {
	s.runs(func() {
		s.m.Handle(s.w.now, ev)
		s.carryOut()
	})
}

func (s *simSide) carryOut() {
	for actions := s.m.TakeActions(nil); len(actions) > 0; actions = s.m.TakeActions(nil) {
		if err := s.ledger.saw(s.m, actions); err != nil {
			s.w.wrong = append(s.w.wrong, fmt.Errorf("%s: %w", s.name, err))
		}
		for _, a := range actions {
			if ev := s.answer(a); ev != nil {
				s.m.Handle(s.w.now, ev)
			}
		}
	}
	for s.m.Want() > 0 && len(s.unread) > 0 {
		n := min(s.m.Want(), len(s.unread), 1+s.w.r.IntN(20))
		s.m.Handle(s.w.now, Received{s.unread[:n]})
		s.unread = s.unread[n:]
		s.carryOut()
	}
	if s.m.Want() > 0 && s.eof {
		s.m.Handle(s.w.now, ReadFailed{errTest})
		s.carryOut()
	}
	if s.m.State() == Over {
		s.end()
		return
	}
	if at := s.m.Deadline(); !at.IsZero() {
		s.w.after(at.Sub(s.w.now), func() { s.happens(Tick{}) })
	}
}

// answer does what a driver does. Now and then it cannot.
func (s *simSide) answer(a Action) Event {
	w := s.w
	i := 0
	if s.name == "server" {
		i = 1
	}
	if w.r.IntN(100) == 0 && !w.sound {
		switch a.(type) {
		case Prepare, Survey, FindPath, Admit, AwaitTurn, MakeGroup, ConnectFirst, Attach:
			return Failed{failed(Failure{})}
		}
	}
	switch a := a.(type) {
	case Prepare:
		return Prepared{}
	case Survey:
		h := testHost()
		h.PeerID = testOwn
		if w.r.IntN(3) == 0 {
			h.EIDs = nil
		}
		return Surveyed{h}
	case FindPath:
		return PathFound{Routed: true}
	case Admit:
		return Admitted{}
	case AwaitTurn:
		wait := 20 * time.Millisecond
		if w.r.IntN(10) == 0 {
			wait = 2 * TurnWait
		}
		w.after(w.some(wait), func() {
			if s.m.State() == Queueing {
				s.happens(Turn{testOwn})
			}
		})
	case JoinGroup:
		if !w.known[i] {
			return NoGroup{}
		}
		return Joined{}
	case MakeGroup:
		return GroupMade{Local: testEndpoint()}
	case ConnectFirst:
		return Connected{}
	case Attach:
		return Attached{testEndpoint()}
	case AwaitLLC:
		s.awaitLLC(i)
	case StopReading:
		for n := Rest(s.m.part); n > 0 && len(s.unread) > 0 && s.m.State() == Draining; n = Rest(s.m.part) {
			n = min(n, len(s.unread))
			s.m.Handle(w.now, Received{s.unread[:n]})
			s.unread = s.unread[n:]
		}
		return ReadStopped{}
	case LetGo:
		if w.r.IntN(4) > 0 || w.sound {
			return s.isConnected()
		}
		w.after(w.some(LetGoWait+LetGoWait/4), func() {
			if s.m.State() == LettingGo {
				s.happens(s.isConnected())
			}
		})
	case WatchDecline:
		s.poll()
	case Send:
		raw, err := a.Message.AppendBinary(nil)
		if err != nil || s.eof {
			return SendFailed{errTest}
		}
		w.note = append(w.note, fmt.Sprintf("+%v %s sends %s", w.now.Sub(start), s.name, a.Message.CLCType()))
		s.write(raw)
		return Sent{}
	}
	return nil
}

// awaitLLC is an LLC exchange. CONFIRM LINK needs both sides; otherwise it times out.
func (s *simSide) awaitLLC(i int) {
	w := s.w
	if s.m.State() == AwaitRKey {
		ev := Event(LLCDone{testEndpoint()})
		if w.r.IntN(20) == 0 {
			ev = LLCFailed{failed(Failure{})}
		}
		w.after(w.some(time.Second), func() { s.happens(ev) })
		return
	}
	if w.wait[i] = true; !w.wait[1-i] || w.gone[1-i] || s.peer.over {
		w.after(4*time.Second, func() {
			if !w.met && (!w.wait[1-i] || w.gone[1-i] || s.peer.over) {
				w.gone[i] = true
				s.happens(LLCFailed{failed(Failure{})})
			}
		})
		return
	}
	w.met = true
	for j, x := range w.sides {
		w.after(w.some(4*time.Second), func() { x.happens(w.llc[j]) })
	}
}

// isConnected is when the program of a client is let go: connect() returns. What the peer has
// sent is acknowledged then, if it was not before.
func (s *simSide) isConnected() Event {
	s.free = true
	for _, ack := range s.acks {
		ack()
	}
	s.acks = nil
	return LetGone{}
}

func (s *simSide) poll() {
	s.runs(func() {
		s.happens(TCPState{Unacked: s.onWay > 0, First: s.unread[:min(len(s.unread), wire.HeaderLen)]})
		if s.m.State() == AwaitAck {
			s.w.after(time.Millisecond, s.poll)
		}
	})
}

// write sends bytes over TCP: they arrive, and then the acknowledgement does. A packet may be
// lost and sent again. The acknowledgement of what the peer has sent may be earlier then.
func (s *simSide) write(b []byte) {
	p := s.peer
	if s.w.tamper != nil {
		b = s.w.tamper(b)
	}
	s.onWay += len(b)
	at := s.w.now.Add(s.delay)
	if s.w.r.IntN(10) == 0 {
		at = at.Add(200*time.Millisecond + s.delay + p.delay)
	}
	if at.Before(s.last) {
		at = s.last
	}
	s.last = at
	s.w.after(at.Sub(s.w.now), func() {
		p.unread = append(p.unread, b...)
		ack := func() { s.w.after(p.delay, func() { s.onWay -= len(b) }) }
		if s.w.held && p.name == "client" && !p.free {
			p.acks = append(p.acks, ack) // for ever, if it resets the connection
		} else {
			ack()
		}
		p.runs(p.carryOut)
	})
}

// end is what a program does with the outcome: it sends data over TCP, or TCP is reset.
func (s *simSide) end() {
	if s.over {
		return
	}
	s.over = true
	o := s.m.Outcome()
	s.w.note = append(s.w.note, fmt.Sprintf("+%v %s ends: %+v", s.w.now.Sub(start), s.name, o))
	if w := s.w; w.held && o.Err == nil {
		if c := w.sides[0]; s == w.sides[1] && !c.free {
			w.wrong = append(w.wrong, fmt.Errorf("accept() of the server returns before connect() of the client, which is in state %s", c.m.State()))
		}
		if s == w.sides[0] && !s.free {
			w.wrong = append(w.wrong, errors.New("the client has an outcome, and its program was not let go"))
		}
	}
	switch {
	case o.Refused != nil:
		s.write([]byte("data of the " + s.name))
	case o.Err != nil:
		p := s.peer
		s.w.after(s.delay, func() {
			p.eof = true
			p.runs(p.carryOut)
		})
	}
}

// run lets everything happen, and returns what a machine did wrong.
func (w *simWorld) run() error {
	for _, s := range w.sides {
		s.carryOut()
	}
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(simEvent)
		w.now = e.at
		e.f()
	}
	for _, x := range w.sides {
		if !x.over {
			w.wrong = append(w.wrong, fmt.Errorf("%s is in state %s at the end", x.name, x.m.State()))
		}
	}
	return errors.Join(w.wrong...)
}

// agree returns an error if the two sides do not agree on the outcome.
func (w *simWorld) agree() error {
	c, s := w.sides[0], w.sides[1]
	co, so := c.m.Outcome(), s.m.Outcome()
	switch {
	case co.Refused != nil && so == (Outcome{}), so.Refused != nil && co == (Outcome{}):
		return errors.New("one side uses SMC-R and the other TCP")
	case co.Refused != nil && so.Refused != nil:
		for _, x := range w.sides {
			if want := "data of the " + x.peer.name; string(x.unread) != want {
				return fmt.Errorf("the program of the %s reads %q, want %q", x.name, x.unread, want)
			}
			if x.m.Outcome().Refused.Remote && x.peer.m.Outcome().Refused.Remote {
				return errors.New("each side says that the other has declined")
			}
		}
	}
	return nil
}

// kind names an outcome.
func kind(o Outcome) string {
	switch {
	case o.Refused != nil:
		return "TCP"
	case o.Err != nil:
		return "reset"
	}
	return "SMC-R"
}

// TestSimulatedRendezvous: whatever fails, and whenever a side gives up, it does not happen that
// one side uses SMC-R and the other TCP; and where both use TCP, what a program reads is
// what the other wrote (RFC 7609, appendices C.1 to C.3). And where programs are held, accept()
// of the server never returns before connect() of the client has, or would.
func TestSimulatedRendezvous(t *testing.T) {
	ends := map[string]int{}
	seeds := uint64(30_000)
	if testing.Short() {
		seeds = 5000
	}
	for seed := range seeds {
		w := newSimWorld(rand.New(rand.NewPCG(seed, 2)))
		if err := cmp.Or(w.run(), w.agree()); err != nil {
			for _, n := range w.note {
				t.Log(n)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		ends[kind(w.sides[0].m.Outcome())+", "+kind(w.sides[1].m.Outcome())]++
	}
	t.Log(ends)
	for _, both := range []string{"SMC-R, SMC-R", "TCP, TCP", "reset, reset"} {
		if ends[both] == 0 {
			t.Errorf("no seed ends with %s", both)
		}
	}
}

// TestBothDecline: when RoCE does not pass, TCP carries the data, also if both sides decline at
// the same time and if packets are lost: nothing is reset, and no program reads a DECLINE.
func TestBothDecline(t *testing.T) {
	both := 0
	seeds := uint64(10_000)
	if testing.Short() {
		seeds = 2000
	}
	for seed := range seeds {
		w := newSimWorld(rand.New(rand.NewPCG(seed, 3)))
		w.queue, w.known, w.sound = nil, [2]bool{}, true // nobody gives up
		for _, s := range w.sides {
			s.delay /= 8 // so that TCP acknowledges a DECLINE in time, see ackWait
		}
		w.llc = [2]Event{LLCFailed{failed(Failure{})}, LLCFailed{failed(Failure{})}}
		err := cmp.Or(w.run(), w.agree())
		for _, s := range w.sides {
			if s.m.Outcome().Refused == nil {
				err = cmp.Or(err, fmt.Errorf("the outcome of the %s is %+v", s.name, s.m.Outcome()))
			}
		}
		if err != nil {
			for _, n := range w.note {
				t.Log(n)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !w.sides[0].m.Outcome().Refused.Remote && !w.sides[1].m.Outcome().Refused.Remote {
			both++
		}
	}
	t.Logf("both declined %d times", both)
	if both == 0 {
		t.Error("both sides never declined")
	}
}
