// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
)

// simMode is the kind of a history.
type simMode uint8

const (
	simCalm     simMode = iota // nothing fails: all data is delivered
	simFailover                // one of two links fails: no connection is affected
	simTrouble                 // links, ports, devices, switches and hosts fail and come back
	simLiar                    // one host sends false messages
	simStop                    // one host stops answering
	simCrowd                   // many connections, small groups, parallel groups
	numSimModes
)

var simModeNames = [...]string{"calm", "failover", "trouble", "liar", "stop", "crowd"}

func (m simMode) String() string { return simModeNames[m] }

// simulation is the history of some hosts in one world. The seed determines everything:
// the world processes one event after the other, and after each event it waits until all
// goroutines of the stacks are blocked.
type simulation struct {
	seed  uint64
	mode  simMode
	rng   *rand.Rand // for the choices of the simulation and the programs
	wire  *rand.Rand // for the changes of messages
	w     *simfabric.World
	trace *simTracer
	logs  bool
	buf   []byte

	hosts      []*simHost
	pairs      []*simPair
	open       int // pairs that have not ended
	planned    int // pairs and faults that have not begun
	faults     int // faults that have begun
	failure    string
	done       chan struct{}
	ending     bool
	steps      int
	finalTries int // attempts to make the last connection
	real       time.Duration
	late       bool

	writes  []simWrite
	armed   []simTrigger
	hits    []func()
	hitAt   simfabric.Place // where the last message arrived that a trigger waited for
	engines simEngines
	liar    *simHost
	hold    bool // adapters may lose data that they have acknowledged
	stopped *simHost
	recordedMessages
}

// simHost is a host with its stack.
type simHost struct {
	s      *simulation
	i      int
	name   string
	h      *simfabric.Host
	conf   userstack.Config
	eid    string
	devs   int
	stack  *userstack.Stack
	engine bool            // it has engines with loops
	loop   *simfabric.Loop // of stack, or nil
	down   bool            // it is starting again
	gone   chan error      // receives the error of closing the old stack
	away   time.Duration   // how long the host is down after that
	old    []*userstack.Stack
}

// simWrite is an RDMA write that is checked after the event.
type simWrite struct {
	from, to      string
	rkey          uint32
	addr          uint64
	before, after []byte
	forged        bool
}

// simResult is the result of a simulation.
type simResult struct {
	failure string
	hash    uint64
	trace   *simTracer
	mode    simMode
	// late reports whether the machine delayed the process for so long that the Go
	// scheduler may have preempted a goroutine within a step. Only such a run can differ
	// from another run of the seed.
	late bool
}

// simulate runs one seed.
func simulate(t *testing.T, seed uint64, logs bool) (res simResult) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(seed, logs)
		s.run()
		res = simResult{s.failure, s.trace.hash, s.trace, s.mode, s.late}
	})
	return res
}

func newSimulation(seed uint64, logs bool) *simulation {
	s := &simulation{
		seed: seed, mode: simMode(seed % uint64(numSimModes)),
		rng: rand.New(rand.NewPCG(seed, 0x73696d)), wire: rand.New(rand.NewPCG(seed, 0x77697265)),
		logs: logs, trace: &simTracer{start: time.Now()}, buf: make([]byte, 32<<10), done: make(chan struct{}),
	}
	r := s.rng
	conf := simfabric.Config{
		Seed:            seed,
		Delay:           time.Duration(1+r.IntN(100)) * time.Microsecond,
		Jitter:          time.Duration(1+r.IntN(300_000)) * time.Nanosecond,
		RetransmitDelay: time.Duration(1+r.IntN(4000)) * time.Microsecond,
		Step:            s.step, Observe: s.observe, Alter: s.alter, AlterTCP: s.alterTCP,
	}
	switch r.IntN(4) {
	case 0:
		conf.Jitter = time.Duration(1 + r.Int64N(int64(10*time.Millisecond)))
	case 1:
		conf.Loss = 0.05
	case 2:
		conf.Loss = 0.005
	}
	if r.IntN(2) == 0 {
		conf.Hold = s.some(3 * time.Millisecond)
	}
	s.hold = conf.Hold > 0
	s.engines = newSimEngines(seed)
	conf.Stall = s.engines.stall()
	s.w = simfabric.New(conf)
	n := 2
	switch s.mode {
	case simCrowd, simTrouble, simCalm:
		n = 2 + r.IntN(3)
	case simLiar, simStop:
		n = 3
	}
	for i := range n {
		s.addHost(i)
	}
	switch s.mode {
	case simLiar:
		s.liar = s.hosts[r.IntN(n)]
	case simStop:
		s.stopped = s.hosts[r.IntN(n)]
	}
	return s
}

func (s *simulation) addHost(i int) {
	r := s.rng
	h := &simHost{s: s, i: i, name: string(rune('A' + i)), devs: 1 + r.IntN(3)}
	if s.mode == simFailover {
		h.devs = 2
	}
	h.h = s.w.Host(h.name, bedtest.NetDevs(i+1, h.devs)...)
	var mu sync.Mutex
	source := rand.New(rand.NewPCG(s.seed, uint64(i)))
	random := func() uint32 {
		mu.Lock()
		defer mu.Unlock()
		return source.Uint32()
	}
	h.conf = userstack.Config{
		NoOption: true, Hostname: h.name,
		RecvBuf: 16 << 10 << (r.IntN(3) / 2), SendBuf: 4096 << r.IntN(4),
		EyeCatcher: r.IntN(3) == 0, MaxLinks: []int{0, 1, 2, 2, 3, 4, linkgroup.MaxLinks}[r.IntN(7)],
	}
	inside.SetHost(&h.conf, inside.Host{Network: bedtest.Network{Host: h.h}})
	if r.IntN(3) == 0 || s.mode == simCrowd {
		h.conf.MaxConns = 1 + r.IntN(6)
	}
	if s.logs {
		h.conf.Log = slog.New(simLog{x: s.trace, host: h.name})
	}
	inside.SetTuning(&h.conf, inside.Tuning{Timers: s.tuner(), Random: random, SendChunk: []int{0, 1, 3000}[(s.seed+uint64(i))%3]})
	if r.IntN(2) == 0 {
		h.eid = "SIMULATION"
	}
	h.engine = s.engines.rng.IntN(4) < s.engines.share
	s.hosts = append(s.hosts, h)
	h.start()
}

// tuner returns the function that sets the timers of a host. Some are shorter than usual,
// so that they fire often. No timer is a round number, because the order of two timers
// that end at the same time is random.
func (s *simulation) tuner() func(smc.Role, *linkgroup.Timers) {
	idle := s.some(50 * time.Millisecond)
	retry := s.some(5 * time.Second)
	odd := s.some(time.Microsecond)
	var groups atomic.Int32 // each group has different timers
	return func(_ smc.Role, t *linkgroup.Timers) {
		t.RMBIdle, t.AddLinkRetry = idle, retry
		odd := odd + time.Duration(groups.Add(1))
		for i, d := range []*time.Duration{
			&t.TestLink, &t.TestLinkAnswer, &t.TestLinkBusy, &t.Idle, &t.LLC, &t.ConfirmLink, &t.ConfirmFirst, &t.LLCStart,
			&t.CloseWait, &t.AbortWait, &t.TCPGrace, &t.TCPGraceAlive, &t.Terminate,
		} {
			*d += odd * time.Duration(i+1)
		}
	}
}

// start gives the host a new stack.
func (h *simHost) start() {
	h.s.engines.serve(h)
	stack, err := userstack.New(h.conf)
	if err == nil && h.eid != "" {
		err = stack.Control().AddUEID(context.Background(), h.eid)
	}
	if err != nil {
		h.s.fail("%s: %v", h.name, err)
		return
	}
	h.stack = stack
}

// fail records the first failure and ends the simulation.
func (s *simulation) fail(format string, args ...any) {
	if s.failure == "" {
		s.failure = fmt.Sprintf(format, args...)
		s.trace.notef("FAILURE: %s", s.failure)
	}
	s.end()
}

func (s *simulation) end() {
	if !s.ending {
		s.ending = true
		close(s.done)
	}
}

// run runs the simulation.
func (s *simulation) run() {
	s.trace.notef("seed %d: %s, %d hosts", s.seed, s.mode, len(s.hosts))
	for _, h := range s.hosts {
		s.trace.notef("%s: %d devices, EID %q, buffers %d and %d, eye catcher %v, at most %d links and %d connections, engine %v",
			h.name, h.devs, h.eid, h.conf.RecvBuf, h.conf.SendBuf, h.conf.EyeCatcher, h.conf.MaxLinks, h.conf.MaxConns, h.engine)
	}
	s.plan()
	s.beat()
	<-s.done
	for _, h := range s.hosts {
		time.Sleep(s.cancel(h))
		h.h.SetVanished(false)
		if h.stack == nil {
			continue
		}
		if err := closeStack(h.stack, h.loop); err != nil && !errors.Is(err, userstack.ErrStackClosed) {
			s.fail("close %s: %v", h.name, err)
		}
	}
	time.Sleep(time.Second) // messages on the way arrive
	s.w.Close()
	if s.failure == "" {
		s.leaks()
	}
}

// beat makes a step every second, because some changes are no event of the world: a timer
// that ends a rendezvous, for example.
func (s *simulation) beat() {
	if !s.ending {
		s.w.After(time.Second+1, s.beat)
	}
}

// cancel ends the handshakes of a host one after the other, before its stack ends them in
// a random order.
func (s *simulation) cancel(h *simHost) (after time.Duration) {
	for _, p := range s.pairs {
		for _, e := range p.ends {
			if e.host == h && !e.done.Load() && e.cancel != nil {
				after++
				s.w.After(after, e.cancel)
			}
		}
	}
	return after + 1
}

// plan chooses the connections and the faults.
func (s *simulation) plan() {
	r := s.rng
	pairs := 1 + r.IntN(8)
	span := time.Duration(1+r.IntN(40)) * time.Millisecond
	switch s.mode {
	case simCrowd:
		pairs = 6 + r.IntN(14)
	case simFailover:
		s.planFailover(pairs)
		return
	case simTrouble:
		s.planTrouble(span)
	case simLiar:
		pairs += 2
		s.planLies(span)
	case simStop:
		pairs += 2
	}
	for range pairs {
		s.later(s.some(span), func() { s.launch(s.mode == simCalm || s.mode == simCrowd, false) })
	}
	if s.mode == simStop {
		s.later(s.some(span), func() {
			s.trace.notef("%s stops", s.stopped.name)
			s.mute = true
		})
	}
}

// later calls f after the time d. The simulation does not end before that.
func (s *simulation) later(d time.Duration, f func()) {
	s.planned++
	s.w.After(d, func() {
		s.planned--
		if !s.ending {
			f()
			s.maybeEnd()
		}
	})
}

// some returns a time between 0 and d.
func (s *simulation) some(d time.Duration) time.Duration {
	return time.Duration(1 + s.rng.Int64N(int64(d)))
}

// launch begins a connection between two hosts.
func (s *simulation) launch(sure, gentle bool) {
	i := s.rng.IntN(len(s.hosts))
	j := (i + 1 + s.rng.IntN(len(s.hosts)-1)) % len(s.hosts)
	s.launchBetween(s.hosts[i], s.hosts[j], sure, gentle)
}

func (s *simulation) launchBetween(a, b *simHost, sure, gentle bool) *simPair {
	from := netip.AddrPortFrom(bedtest.Addr(a.i+1, 0), 0)
	to := netip.AddrPortFrom(bedtest.Addr(b.i+1, 0), 80)
	ct, st, err := s.w.Connect(from, to)
	if err != nil {
		if sure {
			s.fail("connect %s to %s: %v", from, to, err)
		}
		return nil
	}
	p := &simPair{s: s, id: len(s.pairs) + 1, from: time.Now(), sure: sure}
	p.tainted = a == s.liar || b == s.liar || a == s.stopped || b == s.stopped
	p.ends[0] = &simEnd{p: p, side: 0, host: a, stack: a.stack, tcp: ct}
	p.ends[1] = &simEnd{p: p, side: 1, host: b, stack: b.stack, tcp: st}
	p.ends[0].other, p.ends[1].other = p.ends[1], p.ends[0]
	p.chooseBehaviour(gentle)
	for _, e := range p.ends {
		s.engines.attach(e)
	}
	s.pairs = append(s.pairs, p)
	s.open++
	s.trace.notef("%s>%s connection %d: %d and %d bytes to send", a.name, b.name, p.id, p.ends[0].total, p.ends[1].total)
	timeout := 100*time.Second + s.some(time.Second)
	if !sure && !gentle && s.rng.IntN(4) == 0 {
		timeout = s.some(50 * time.Millisecond)
	}
	p.launch(timeout)
	// The stacks find dead peers themselves. Programs give up only on false hosts.
	if a == s.liar || b == s.liar {
		s.w.After(2*time.Minute, func() { p.giveUp() })
	}
	s.w.After(15*time.Minute, func() {
		for _, e := range p.ends {
			if !e.over {
				s.fail("%s connection %d does not end: %s", e.name(), p.id, e.describe())
			}
		}
	})
	return p
}

func (p *simPair) giveUp() {
	if p.s.ending {
		return
	}
	for _, e := range p.ends {
		if e.c != nil && !e.over && !e.closed {
			e.closed = true
			e.io.Abort()
		}
	}
}

func (e *simEnd) describe() string {
	if e.c == nil {
		return fmt.Sprintf("rendezvous over: %v, error %v", e.done.Load(), e.err)
	}
	var state smc.ConnState
	info := ""
	inspect(e.stack).View(e.c, func(core *linkgroup.Conn) { state, info = core.State(), fmt.Sprintf("%+v", core.Info()) })
	return fmt.Sprintf("state %s, closed %v, wrote %d of %d, read %d of %d, %s", state, e.closed, e.wrote, e.total, e.read, e.other.wrote, info)
}

// pairOver counts a connection that has ended on both sides.
func (s *simulation) pairOver(p *simPair) {
	for _, e := range p.ends {
		e.cancel()
	}
	s.open--
	p.judge()
	s.maybeEnd()
}

// maybeEnd ends the simulation when nothing more will happen. Before that, the correct
// hosts must be able to connect with each other.
func (s *simulation) maybeEnd() {
	if s.open > 0 || s.planned > 0 || s.ending {
		return
	}
	if s.mode == simCalm || s.mode == simCrowd || s.mode == simFailover {
		s.end()
		return
	}
	if n := len(s.pairs); s.finalTries > 0 {
		if p := s.pairs[n-1]; p.ends[0].end == nil && p.ends[1].end == nil {
			s.end()
			return
		}
	}
	if s.finalTries++; s.finalTries > 6 {
		s.fail("after all failures: no connection between %s and %s", s.hosts[0].name, s.hosts[1].name)
		return
	}
	// TEST LINK finds links that have failed without an event.
	s.later(40*time.Second, func() {
		var honest []*simHost
		for _, h := range s.hosts {
			if h != s.liar && h != s.stopped {
				honest = append(honest, h)
			}
		}
		s.launchBetween(honest[0], honest[1], false, true)
	})
}

// dump writes the trace for people to read.
func (x *simResult) dump(w io.Writer, lines int) {
	x.trace.print(w, lines)
}
