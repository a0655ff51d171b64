// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Config describes a [World]. Times are one-way.
type Config struct {
	// Seed decides delays, losses, keys and numbers.
	Seed uint64
	// Delay is how long a message takes at least, Jitter what is added at
	// most. Messages of one queue pair or TCP connection keep their order.
	Delay, Jitter time.Duration
	// Loss is the share of messages, 0 to 1, which have to be sent again and
	// so arrive later by RetransmitDelay, or 1 ms where that is zero.
	Loss            float64
	RetransmitDelay time.Duration
	// TCPWindow is how many bytes a TCP connection takes that the peer has
	// not read; zero means 64 KiB.
	TCPWindow int

	// Hold is how long an adapter keeps messages at most which it has
	// acknowledged already. They are lost if it is removed meanwhile.
	Hold time.Duration

	// Stall is how long the thread of a [Loop] is held up at most, as another
	// one takes its processor: between rounds, and before it goes to sleep.
	Stall time.Duration

	// The rest is for tests that steer and watch. Alter and AlterTCP may
	// change what arrives; Alter may also keep a message from the receiver,
	// which the sender does not notice. Like Observe they are called with
	// the world locked: they must not call it.
	Alter    func(from, to Place, msg []byte) (altered []byte, deliver bool)
	AlterTCP func(from, to Place, data []byte) []byte
	Observe  func(*Event)
	// Step is called on the world's goroutine after each event, with
	// nothing locked.
	Step func()
}

// A World is hosts and what lies between them. Make one with [New].
type World struct {
	cfg  Config
	done chan struct{} // the scheduler has ended
	wake chan struct{} // an event came that is earlier than all others

	// mu guards everything in the world.
	mu     sync.Mutex
	events eventHeap
	seq    uint64
	closed bool
	hosts  []*Host
	lans   map[string]*lan
	addrs  map[netip.Addr]*netdev
	qps    map[uint32]*qp
	mrs    map[uint32]*mr
	count  Objects
	lastID int
	vaddr  uint64
	port   uint32
	notify []notice // to be called once mu is free
	// Of the loops, for the end.
	sources []*source
}

// lan is a switch.
type lan struct {
	down bool
	cut  time.Time // when it went down
}

// Objects counts the verbs objects that exist, the loops, and the loops' ends of
// socketpairs.
type Objects struct{ Devices, PDs, MRs, CQs, QPs, Loops, Sockets int }

// notice is a function to be called once World.mu is free: by whoever drops it, or
// by the loop that serves what it is about if an event of the world led to it.
type notice struct {
	f  func()
	on *watch
}

// New makes a world and starts its clockwork.
func New(cfg Config) *World {
	if cfg.TCPWindow <= 0 {
		cfg.TCPWindow = 64 << 10
	}
	if cfg.RetransmitDelay <= 0 {
		cfg.RetransmitDelay = time.Millisecond
	}
	w := &World{
		cfg: cfg, done: make(chan struct{}), wake: make(chan struct{}, 1),
		lans: map[string]*lan{}, addrs: map[netip.Addr]*netdev{},
		qps: map[uint32]*qp{}, mrs: map[uint32]*mr{},
		vaddr: 1 << 32, port: 40000,
	}
	go w.run()
	return w
}

// Close stops the world: nothing is delivered any more. It waits for the
// world's goroutine, so a notify function must not call it.
func (w *World) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		w.kick()
	}
	w.mu.Unlock()
	<-w.done
}

// Objects returns how many objects exist, for tests to find those that were
// not closed.
func (w *World) Objects() Objects {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// SetLAN takes the switch of a LAN down or up again. Hosts see nothing of it:
// their ports stay active and their messages are lost.
func (w *World) SetLAN(name string, up bool) {
	w.mu.Lock()
	defer w.unlock()
	l := w.lan(name)
	l.down = !up
	if !up {
		l.cut = time.Now()
	}
	w.changed("", name, "switch "+upDown(up))
}

// SetLoss changes Config.Loss.
func (w *World) SetLoss(share float64) {
	w.mu.Lock()
	defer w.unlock()
	w.cfg.Loss = share
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func (w *World) lan(name string) *lan {
	l := w.lans[name]
	if l == nil {
		l = &lan{}
		w.lans[name] = l
	}
	return l
}

// unlock drops mu and then calls the notify functions that became due.
func (w *World) unlock() {
	due := w.notify
	w.notify = nil
	w.mu.Unlock()
	for _, n := range due {
		n.f()
	}
}

// unlockEvent is unlock after an event.
func (w *World) unlockEvent() {
	due := w.notify
	w.notify = nil
	for _, n := range due {
		if n.on != nil {
			n.on.raise()
		}
	}
	w.mu.Unlock()
	for _, n := range due {
		if n.on == nil {
			n.f()
		}
	}
}

// An event is something to be done at a time, with mu held.
type event struct {
	at  time.Time
	seq uint64 // order of those at the same time
	do  func(now time.Time)
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *eventHeap) Push(x any) { *h = append(*h, x.(event)) }

// Pop implements heap.Interface.
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// at schedules do. mu is held.
func (w *World) at(t time.Time, do func(now time.Time)) {
	w.seq++
	heap.Push(&w.events, event{t, w.seq, do})
	if w.events[0].seq == w.seq {
		w.kick()
	}
}

func (w *World) kick() {
	kick(w.wake)
}

// run carries out events as they fall due.
func (w *World) run() {
	defer close(w.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w.mu.Lock()
		if w.closed {
			w.events = nil
			for _, s := range w.sources {
				s.release()
			}
			w.unlock()
			return
		}
		now := time.Now()
		wait := time.Duration(-1)
		if len(w.events) > 0 {
			if wait = w.events[0].at.Sub(now); wait <= 0 {
				e := heap.Pop(&w.events).(event)
				e.do(now)
				w.unlockEvent()
				if w.cfg.Step != nil {
					w.cfg.Step()
				}
				continue
			}
		}
		w.unlock()
		if wait < 0 {
			<-w.wake
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-w.wake:
		}
	}
}

// random returns the source of all chance at one place: a netdev, a queue pair,
// a TCP connection. What happens at one place so does not depend on the order
// in which goroutines act at others.
func (w *World) random(kind, id uint32) *rand.Rand {
	return rand.New(rand.NewPCG(w.cfg.Seed, uint64(kind)<<32|uint64(id)))
}

// Kinds of places.
const (
	atNetDev = iota + 1
	atQP
	atTCP
	atLoop
	atPair
)

// arrival draws when a message sent now arrives, not before last.
func (w *World) arrival(rng *rand.Rand, now, last time.Time) time.Time {
	t := now.Add(w.cfg.Delay)
	if w.cfg.Jitter > 0 {
		t = t.Add(time.Duration(rng.Int64N(int64(w.cfg.Jitter))))
	}
	if w.cfg.Loss > 0 && rng.Float64() < w.cfg.Loss {
		t = t.Add(w.cfg.RetransmitDelay)
	}
	if t.Before(last) {
		return last
	}
	return t
}
