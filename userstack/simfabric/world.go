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
	// Seed determines delays, losses, keys and numbers.
	Seed uint64
	// Delay is the shortest time that a message takes. Jitter is the longest time that is
	// added to it. Messages of one queue pair or TCP connection keep their order.
	Delay, Jitter time.Duration
	// Loss is the share of messages, 0 to 1, that have to be sent again. They arrive
	// later by RetransmitDelay; zero means 1 ms.
	Loss            float64
	RetransmitDelay time.Duration
	// TCPWindow is the number of bytes that can be sent on a TCP connection before the
	// peer reads them. Zero means 64 KiB.
	TCPWindow int

	// Hold is the longest time that an adapter keeps messages that it has already
	// acknowledged. They are lost if the adapter is removed meanwhile.
	Hold time.Duration

	// Pinned means that the devices pin registered memory: rdmaverbs.DeviceAttr has no
	// OnDemandPaging.
	Pinned bool

	// Stall is the longest time that the thread of a [Loop] is delayed because another
	// thread has its processor: between rounds, and before it sleeps.
	Stall time.Duration

	// The other fields are for tests that control and observe. Alter and AlterTCP may
	// change what arrives. Alter may also report that a message is not delivered, which
	// the sender does not notice. They and Observe are called with the world locked, so
	// they must not call it.
	Alter    func(from, to Place, msg []byte) (altered []byte, deliver bool)
	AlterTCP func(from, to Place, data []byte) []byte
	Observe  func(*Event)
	// Step is called on the goroutine of the world after each event, without a lock.
	Step func()
}

// A World has hosts and the networks between them. Make one with [New].
type World struct {
	cfg  Config
	done chan struct{} // closed when the goroutine of the world has ended
	wake chan struct{} // an event was added that is earlier than all others

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
	notify []notice // to be called after mu is released
	// All loops, so that their goroutines can end with the world.
	sources []*source
}

// lan is a switch.
type lan struct {
	down bool
	cut  time.Time // when it went down
}

// Objects is the number of verbs objects that exist, of loops, and of the loops' ends of
// socketpairs.
type Objects struct{ Devices, PDs, MRs, CQs, QPs, Loops, Sockets int }

// notice is a function to be called without World.mu: by the goroutine that has released
// it, or, after an event of the world, by the loop that serves the object.
type notice struct {
	f  func()
	on *watch
}

// New makes a world and starts its goroutine.
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

// Close stops the world: nothing is delivered any more. It waits for the goroutine of the
// world, so a notify function must not call it.
func (w *World) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		w.kick()
	}
	w.mu.Unlock()
	<-w.done
}

// Objects returns the number of objects that exist, so that tests can find those that
// were not closed.
func (w *World) Objects() Objects {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// SetLAN sets the switch of a LAN down or up. Hosts do not notice it: their ports stay
// active, and their messages are lost.
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

// unlock releases mu and then calls the notify functions that are due.
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

// An event is a function to call at a time, with mu held.
type event struct {
	at  time.Time
	seq uint64 // the order of events at the same time
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

// run processes the events when they are due.
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

// random returns the source of random numbers for one place: a netdev, a queue pair, a
// TCP connection. So what happens at one place does not depend on the order in which
// goroutines act at other places.
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

// arrival returns a random arrival time for a message that is sent now. It is not before
// last.
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
