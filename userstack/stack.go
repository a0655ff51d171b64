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
	tcpSockets *tcptable.Table // that the stack does not carry
	opt        tcpOption
	limit      handshakeLimit
	own        ownParts
	reg        registry
	tcpRcv     int // SO_RCVBUF of a new TCP socket

	loop   *engine.Loop    // nil without an engine
	ctx    context.Context // ends with the stack: bounds handshakes
	cancel context.CancelFunc
}

// ownParts is the part of a stack that has what the stack made itself, and must close.
type ownParts struct {
	net *network.Namespace // or nil
	ns  *network.NetNS     // or nil
	opt bool               // the marker of the TCP option
}

// New starts a stack in the network namespace of the calling thread. It opens no
// RDMA device: that is done when a connection first needs one.
func New(cfg Config) (*Stack, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Stack{
		cfg: cfg, log: cfg.Log, net: cfg.network, pnets: cfg.PNETs,
		opt: tcpOption{marker: cfg.option, assume: cfg.AssumeSMC},
		reg: registry{
			groups: map[*group]struct{}{}, ending: map[*group]struct{}{},
			first: map[peerKey]chan struct{}{}, conns: map[*Conn]struct{}{},
		},
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
	if s.own.net != nil {
		diag = s.own.net.SockDiag()
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
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	if s.reg.peerID == (smc.PeerID{}) {
		cd, err := p.Describe(netip.Prefix{})
		if err == nil {
			s.reg.peerID = s.newPeerID(cd.MAC)
		}
	}
	return s.reg.peerID
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
	for _, g := range s.reg.groupList() {
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

// PNETs returns the stack's pnetid table: Config.PNETs, or the stack's own.
func (s *Stack) PNETs() *pnet.Table { return s.pnets }

// OptionError tells why the stack cannot announce SMC in the TCP handshake, or
// is nil. If it is not, SMC-R is used toward Config.AssumeSMC alone.
func (s *Stack) OptionError() error { return s.opt.err }

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
	s.reg.mu.Lock()
	if s.reg.closed {
		s.reg.mu.Unlock()
		return ErrStackClosed
	}
	s.reg.closed = true
	groups := s.reg.sortedGroups()
	s.reg.mu.Unlock()
	s.cancel()
	var errs []error
	if s.own.opt { // what is announced from here on nobody would keep
		errs = append(errs, s.opt.marker.Close())
	}
	for _, g := range groups {
		g.do(func(now time.Time) {
			if !g.end.dead {
				g.core.Terminate(now, wire.DeleteLinkProgram)
			}
		})
	}
	deadline := time.Now().Add(answerWait)
	for len(s.reg.groupList()) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, g := range s.reg.groupList() {
		g.do(func(now time.Time) {
			for !g.end.dead && len(g.links) > 0 {
				g.core.LinkFailed(now, g.links[0].core, ErrStackClosed)
			}
		})
	}
	s.reg.mu.Lock()
	conns := slices.SortedFunc(maps.Keys(s.reg.conns), func(a, b *Conn) int { return cmp.Compare(a.ino, b.ino) })
	s.reg.mu.Unlock()
	for _, c := range conns {
		c.end.ended(conn.ErrReset)
	}
	s.reg.wg.Wait() // for rendezvous: they may have objects on devices, too
	if late := s.reg.awaitGroups(groupWait); late != nil {
		s.log.Warn("link groups did not release their memory", "stopped at", late.name())
	}
	errs = append(errs, s.devices.Close())
	if s.loop != nil {
		errs = append(errs, s.loop.Close())
	}
	s.tcpSockets.Close()
	if s.own.net != nil {
		s.own.net.Close()
	}
	if s.own.ns != nil {
		errs = append(errs, s.own.ns.Close())
	}
	s.trim.close()
	s.mem.Close()
	return errors.Join(errs...)
}

func (s *Stack) peerIDNow() smc.PeerID {
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	return s.reg.peerID
}
