// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"smcr/guard"
	"smcr/pnet"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/conn"
	"smcr/userstack/devices"
	"smcr/userstack/engine"
	"smcr/userstack/internal/mempool"
	"smcr/userstack/internal/tcptable"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// ErrStackClosed is returned by the methods of a closed Stack. It is also
// net.ErrClosed to errors.Is.
var ErrStackClosed error = closedError{}

// Stack is an SMC-R stack in user space, for one network namespace.
type Stack struct {
	cfg        Config
	log        *slog.Logger
	net        network.Network
	devices    *devices.Set
	pnets      *pnet.Table
	eids       eidTable
	mem        *mempool.Pool
	trim       trimmer
	stats      stats.Collector
	guard      guard.Guard
	tcpSockets *tcptable.Table      // that the stack does not carry
	option     network.OptionMarker // nil: not permitted
	optErr     error                // why option is nil
	tcpRcv     int                  // SO_RCVBUF of a new TCP socket
	peerID     smc.PeerID
	born       time.Time

	mu           sync.Mutex
	closed       bool
	groups       map[*group]struct{}
	ending       map[*group]struct{} // dead, with something left to give back
	lastLGR      atomic.Uint32
	groupsPlaced atomic.Uint32             // see group.place
	first        map[peerKey]chan struct{} // servers' first contacts under way
	conns        map[*Conn]struct{}
	listeners    map[*listener]struct{}
	ctx          context.Context // ends with the stack: bounds handshakes
	cancel       context.CancelFunc
	wg           sync.WaitGroup
	loop         *engine.Loop // nil without an engine
	ownNet       *network.Namespace
	ownNS        *network.NetNS
	ownOpt       bool
	limitHS      atomic.Bool
	serving      atomic.Int32 // server-side rendezvous under way
	lastSock     atomic.Uint64
}

// New starts a stack in the network namespace of the calling thread. It opens no
// RDMA device: that is done when a connection first needs one.
func New(cfg Config) (*Stack, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Stack{
		cfg: cfg, log: cfg.Log, net: cfg.network, pnets: cfg.PNETs,
		option: cfg.option, born: time.Now(),
		groups: map[*group]struct{}{}, ending: map[*group]struct{}{},
		first: map[peerKey]chan struct{}{}, conns: map[*Conn]struct{}{},
	}
	s.trim.s = s
	s.mem = mempool.New(s.trim.poke)
	s.guard = guard.Guard{Log: s.log, Count: s.stats.Panic}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.defaults(); err != nil {
		s.cancel()
		return nil, err
	}
	s.devices = devices.New(devices.Config{
		Providers: s.cfg.Providers, Network: s.net, PNETs: s.pnets, NetDevs: s.cfg.NetDevs, Changed: s.portChanged, Log: s.log,
	})
	var diag network.SockDiag
	if s.ownNet != nil {
		diag = s.ownNet.SockDiag()
	}
	s.tcpSockets = tcptable.New(diag.Each)
	return s, nil
}

// newPeerID makes the identity of this instance: a random instance number
// and the address of a RoCE port (RFC 7609, appendix A.2.1).
func (s *Stack) newPeerID(mac smc.MAC) smc.PeerID {
	return smc.NewPeerID(uint16(s.cfg.random()), mac)
}

// identity returns the peer ID, which is fixed by the first device used.
func (s *Stack) identity(p *devices.Port) smc.PeerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peerID == (smc.PeerID{}) {
		cd, err := p.Describe(netip.Prefix{})
		if err == nil {
			s.peerID = s.newPeerID(cd.MAC)
		}
	}
	return s.peerID
}

// nextGroupID numbers link groups as the kernel does: in steps that leave
// the low bits for link numbers.
func (s *Stack) nextGroupID() (id [4]byte) {
	n := s.lastLGR.Add(1)
	return [4]byte{byte(n >> 16), byte(n >> 8), byte(n), 0}
}

// groupList returns the link groups, the oldest first: what is done to all of
// them, or to the first that serves, does not depend on the order of a map.
func (s *Stack) groupList() []*group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sortedGroups()
}

func (s *Stack) sortedGroups() []*group {
	return slices.SortedFunc(maps.Keys(s.groups), func(a, b *group) int { return cmp.Compare(lgrID(a), lgrID(b)) })
}

func (s *Stack) addGroup(g *group) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStackClosed
	}
	s.groups[g] = struct{}{}
	return nil
}

func (s *Stack) forgetGroup(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, g)
	s.ending[g] = struct{}{}
}

func (s *Stack) groupOver(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ending, g)
}

// awaitGroups waits until the groups that have died are over, but not longer
// than limit.
func (s *Stack) awaitGroups(limit time.Duration) {
	s.mu.Lock()
	ending := slices.Collect(maps.Keys(s.ending))
	s.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	for _, g := range ending {
		select {
		case <-g.over:
		case <-t.C:
			s.log.Warn("link groups did not release their memory", "stopped at", g.name())
			return
		}
	}
}

// peerKey tells peers apart. In version 2 the GID of the proposal belongs to
// it, since Linux leaves the peer ID zero where it does not offer version 1.
type peerKey struct {
	id  smc.PeerID
	gid smc.GID
}

// groupKey is what a connection demands of a link group. All connections of a
// group have one VLAN and one pair of roles (RFC 7609, section 2.2).
type groupKey struct {
	role  smc.Role
	terms *rendezvous.Terms // nil in version 1
	peer  smc.PeerID
	// A link of the group ends there, for a client at this queue pair. A server
	// has a proposal, which names none.
	gid  smc.GID
	mac  smc.MAC
	qpn  smc.QPN
	vlan uint16
}

// has says whether a link of g is one that k demands. g.mu is held.
func (k *groupKey) has(g *group) bool {
	if k.role == smc.Server {
		return g.core.HasPort(k.gid, k.mac)
	}
	return g.core.HasLink(k.gid, k.mac, k.qpn)
}

// reuse finds a group for a subsequent contact: same peer, role, VLAN and version,
// and a link that the peer's address belongs to. take puts the connection on it,
// with its lock held, or says by an error that the group does not serve.
//
// A server also demands the enterprise ID of the group, which its ACCEPT repeats.
// A client does not: a Linux server has connections share a link group whatever
// ID was agreed on for each, and ends the group if the client knows none.
func (s *Stack) reuse(k groupKey, take func(g *group, now time.Time) error) *group {
	for _, g := range s.groupList() {
		if g.role != k.role || g.peer != k.peer || g.core.VLAN() != k.vlan || g.terms.Version() != k.terms.Version() ||
			k.role == smc.Server && k.terms != nil && g.terms.EID != k.terms.EID {
			continue
		}
		err := g.event(func(now time.Time) error {
			if !k.has(g) {
				return linkgroup.ErrNoLink
			}
			return take(g, now)
		})
		if err == nil {
			return g
		}
	}
	return nil
}

// enter counts a rendezvous, which Close waits for; the caller ends it with
// wg.Done. Once the stack is closed none begins.
func (s *Stack) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStackClosed
	}
	s.wg.Add(1)
	return nil
}

// PNETs returns the stack's pnetid table: Config.PNETs, or the stack's own.
func (s *Stack) PNETs() *pnet.Table { return s.pnets }

// OptionError tells why the stack cannot announce SMC in the TCP handshake, or
// is nil. If it is not, SMC-R is used toward Config.AssumeSMC alone.
func (s *Stack) OptionError() error { return s.optErr }

// assumed reports whether remote is listed as speaking SMC where the TCP
// handshake cannot tell.
func (s *Stack) assumed(remote netip.Addr) bool {
	if s.option != nil {
		return false
	}
	remote = remote.Unmap().WithZone("")
	for _, p := range s.cfg.AssumeSMC {
		if p.Contains(remote) {
			return true
		}
	}
	return false
}

// What Close waits for at most: peers' answers, and then the work of link groups.
// The second is this process's own, and short unless the machine is loaded.
const (
	answerWait = 1500 * time.Millisecond
	groupWait  = 3 * time.Second
)

// Close resets all connections, ends all link groups with DELETE LINK and
// frees everything. It waits a bounded time for peers' answers. The buffer of a
// connection whose ReadFrom or WriteTo is in the program's own reader or writer
// is freed when that returns.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrStackClosed
	}
	s.closed = true
	groups := s.sortedGroups()
	s.mu.Unlock()
	s.cancel()
	var errs []error
	if s.ownOpt { // what is announced from here on nobody would keep
		errs = append(errs, s.option.Close())
	}
	for _, g := range groups {
		g.do(func(now time.Time) {
			if !g.dead {
				g.core.Terminate(now, wire.DeleteLinkProgram)
			}
		})
	}
	deadline := time.Now().Add(answerWait)
	for len(s.groupList()) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, g := range s.groupList() {
		g.do(func(now time.Time) {
			for !g.dead && len(g.links) > 0 {
				g.core.LinkFailed(now, g.links[0].core, ErrStackClosed)
			}
		})
	}
	s.mu.Lock()
	conns := slices.SortedFunc(maps.Keys(s.conns), func(a, b *Conn) int { return cmp.Compare(a.ino, b.ino) })
	s.mu.Unlock()
	for _, c := range conns {
		c.end.ended(conn.ErrReset)
	}
	s.wg.Wait() // for rendezvous: they may have objects on devices, too
	s.awaitGroups(groupWait)
	errs = append(errs, s.devices.Close())
	if s.loop != nil {
		errs = append(errs, s.loop.Close())
	}
	s.tcpSockets.Close()
	if s.ownNet != nil {
		s.ownNet.Close()
	}
	if s.ownNS != nil {
		errs = append(errs, s.ownNS.Close())
	}
	s.trim.close()
	s.mem.Close()
	return errors.Join(errs...)
}

func (s *Stack) peerIDNow() smc.PeerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peerID
}
