// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"maps"
	"sync"

	"smcr/userstack/broker"
)

// Stats counts the connections of the program and all its descendants.
type Stats struct {
	// ByMode counts the connections that are not TCP, by broker.ModeSMCR and
	// broker.ModeLocal.
	ByMode map[broker.Mode]uint64
	// Local counts connections that are TCP between the programs' own sockets because both
	// ends are on this machine.
	Local uint64
	// TCP counts connections that run over TCP by the reason why.
	TCP map[string]uint64
	// Failed counts connection attempts whose failure the service reported, by the
	// text of the errno.
	Failed map[string]uint64
	// KernelSockets counts the sockets made with Config.Kernel, NativeSockets
	// the TCP sockets made in spite of it, by reason.
	KernelSockets uint64
	NativeSockets map[string]uint64
	// Ended counts the connections that ended among those that the service
	// carried, Broken those among them that ended abortively.
	Ended, Broken uint64
	// Resets counts the connections that the service has reset by itself, by reason.
	Resets map[string]uint64
	// Panics counts the internal errors that ended the answer to a call or another part
	// of the launcher. The log has each of them.
	Panics uint64
}

// Reasons for TCP that the launcher itself finds. The service has its own.
const (
	// ReasonNoPeer: the peer did not send the TCP option of SMC.
	ReasonNoPeer = "the peer does not speak SMC"
	// ReasonShort: earlier connections ended before SMC was of use.
	ReasonShort = "connections to the peer were too short for SMC"
	// ReasonNoService: the session with the stack has ended.
	ReasonNoService = "the stack does not answer"
	// ReasonNoAccess: the kernel refuses access to descriptors or memory.
	ReasonNoAccess = "no permission to access the process"
	// ReasonSocketState: the state or an option of the socket does not allow it.
	ReasonSocketState = "the socket cannot be taken over"
	// ReasonDuplicated: the socket has several descriptors, which must all show the
	// same connection.
	ReasonDuplicated = "the socket was duplicated before connect"
	// ReasonInterrupted: a signal ended connect while the launcher worked on it.
	ReasonInterrupted = "the call was interrupted"
	// ReasonBusy: a read or write of its memory did not end in time.
	ReasonBusy = "the process is slow to provide its memory"
	// ReasonNoSocket: in mode kernel, socket(2) for AF_SMC failed.
	ReasonNoSocket = "the kernel did not create an SMC socket"
	// ReasonNetns: the launcher cannot create a socket in the network namespace.
	ReasonNetns = "no privilege in the program's network namespace"
	// ReasonLandlock: a rule of Landlock would not apply to the launcher's sockets.
	ReasonLandlock = "a program has limited its connections with Landlock"
	// ReasonLocal: both ends are on this machine. Stats.Local counts it, not Stats.TCP.
	ReasonLocal = "the peer is on this machine" // the text of smc.DiagLocal
	// ReasonNotPlaced: a connection to a program of the same host could not be made
	// local.
	ReasonNotPlaced = "the stack answered too late for a local connection"
)

type counters struct {
	mu sync.Mutex
	s  Stats
}

func newCounters() *counters {
	return &counters{s: Stats{ByMode: map[broker.Mode]uint64{}, TCP: map[string]uint64{}, Failed: map[string]uint64{}, NativeSockets: map[string]uint64{}, Resets: map[string]uint64{}}}
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.s
	s.ByMode, s.TCP, s.Failed = maps.Clone(s.ByMode), maps.Clone(s.TCP), maps.Clone(s.Failed)
	s.NativeSockets, s.Resets = maps.Clone(s.NativeSockets), maps.Clone(s.Resets)
	return s
}

func (c *counters) mode(m broker.Mode) {
	c.mu.Lock()
	c.s.ByMode[m]++
	c.mu.Unlock()
}

// maxReasons is how many texts of reasons are kept apart: what a peer says is
// part of some of them.
const maxReasons = 64

// ReasonOther stands for reasons beyond maxReasons.
const ReasonOther = "other reasons"

func count(m map[string]uint64, reason string) {
	if _, known := m[reason]; !known && len(m) >= maxReasons {
		reason = ReasonOther
	}
	m[reason]++
}

func (c *counters) tcp(reason string) {
	c.mu.Lock()
	count(c.s.TCP, reason)
	c.mu.Unlock()
}

func (c *counters) local() {
	c.mu.Lock()
	c.s.Local++
	c.mu.Unlock()
}

func (c *counters) failed(reason string) {
	c.mu.Lock()
	count(c.s.Failed, reason)
	c.mu.Unlock()
}

func (c *counters) panicked() {
	c.mu.Lock()
	c.s.Panics++
	c.mu.Unlock()
}

func (c *counters) broken() {
	c.mu.Lock()
	c.s.Broken++
	c.mu.Unlock()
}

func (c *counters) ended() {
	c.mu.Lock()
	c.s.Ended++
	c.mu.Unlock()
}

func (c *counters) reset(reason string) {
	c.mu.Lock()
	count(c.s.Resets, reason)
	c.mu.Unlock()
}

func (c *counters) kernelSocket() {
	c.mu.Lock()
	c.s.KernelSockets++
	c.mu.Unlock()
}

func (c *counters) nativeSocket(reason string) {
	c.mu.Lock()
	count(c.s.NativeSockets, reason)
	c.mu.Unlock()
}
