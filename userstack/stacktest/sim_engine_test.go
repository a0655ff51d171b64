// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"flag"
	"math/rand/v2"
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/simfabric"
)

var simEngine = flag.String("sim.engine", "seed", "hosts whose devices and programs a loop of the engine serves: all, none, or as the seed says")

// simIO is how a program reads and writes: the connection itself, or its end of a
// socketpair whose other end the engine serves. Its methods do not block.
type simIO interface {
	Readable() (n int, err error)
	Writable() (n int, err error)
	Read(b []byte) (int, error)
	Write(b []byte) (int, error)
	WriteUrgent(b []byte) (int, error)
	CloseWrite() error
	Close() error
	Abort() error
	Woken() bool // something may have changed since the last call
	Over() bool  // nothing can change any more
}

// simDirect is a program that uses a Conn of a stack.
type simDirect struct {
	*userstack.Conn
	in inside.Inspector[*userstack.Conn] // of the stack
}

func (d simDirect) Readable() (n int, err error) { return d.in.Readable(d.Conn) }
func (d simDirect) Writable() (n int, err error) { return d.in.Writable(d.Conn) }
func (d simDirect) Woken() bool                  { return d.in.Woken(d.Conn) }
func (d simDirect) Over() bool                   { return isDone(d.Conn) }

// isDone reports whether a connection has ended.
func isDone(c *userstack.Conn) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// simEngines chooses which hosts of a simulation have an engine.
type simEngines struct {
	rng   *rand.Rand
	share int // of 4 hosts, this number has an engine
}

// newSimEngines uses a separate source of random numbers, so that the choice of engines
// does not change the history of a seed without engines.
func newSimEngines(seed uint64) simEngines {
	x := simEngines{rng: rand.New(rand.NewPCG(seed, 0x656e67))}
	share := []int{0, 2, 4, 4}[x.rng.IntN(4)]
	switch *simEngine {
	case "all":
		share = 4
	case "none":
		share = 0
	}
	x.share = share
	return x
}

// stall returns the longest delay of a thread.
func (x *simEngines) stall() time.Duration {
	if x.share == 0 || x.rng.IntN(3) == 0 {
		return 0
	}
	return time.Duration(1+x.rng.IntN(300)) * time.Microsecond
}

// serve gives a host a loop, or no loop.
func (x *simEngines) serve(h *simHost) {
	h.loop, h.conf.Providers = nil, []rdmaverbs.Provider{h.h.Provider()}
	if h.engine {
		spin := time.Duration(0)
		if x.rng.IntN(3) == 0 {
			spin = engine.DefaultSpin + time.Duration(x.rng.IntN(1000))
		}
		h.loop = h.h.NewLoop(spin)
		h.conf.Providers = []rdmaverbs.Provider{h.h.ProviderOn(h.loop)}
	}
}

// attach gives a program its socketpair. On a host with an engine, some programs use the
// connection directly.
func (x *simEngines) attach(e *simEnd) {
	if e.host.loop == nil || *simEngine != "all" && x.rng.IntN(8) == 0 {
		return
	}
	sock, prog := e.host.loop.Pair(256 << x.rng.IntN(9))
	e.relay = newSimRelay(e, sock, prog)
}

// closeStack closes a stack and then the loop that serves it.
func closeStack(s *userstack.Stack, l *simfabric.Loop) error {
	err := s.Close()
	if l != nil {
		_ = l.Close()
	}
	return err
}
