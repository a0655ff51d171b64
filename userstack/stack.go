// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"log/slog"
	"net"
	"net/netip"

	"smcr/guard"
	"smcr/pnet"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/devices"
	"smcr/userstack/driver"
	"smcr/userstack/engine"
	"smcr/userstack/internal/tcptable"
	"smcr/userstack/internal/tracing"
	"smcr/userstack/network"
)

// Stack is an SMC-R stack in user space, for one network namespace.
type Stack struct {
	cfg        Config
	log        *slog.Logger
	net        network.Network
	devices    *devices.Set
	pnets      *pnet.Table
	eids       eidTable
	driver     *driver.Driver
	stats      stats.Collector
	guard      guard.Guard
	trace      tracing.Hub
	tcpSockets *tcptable.Table // sockets that stay TCP
	opt        tcpOption
	limit      handshakeLimit
	undecided  undecided // connections of own listeners
	copies     copies    // where the option of SMC means nothing
	paths      pathTable
	own        ownParts
	reg        registry

	loop   *engine.Loop    // nil without an engine
	ctx    context.Context // ends with the stack: bounds handshakes
	cancel context.CancelFunc
}

// ownParts has what the stack has made for itself and must close.
type ownParts struct {
	net *network.Namespace // or nil
	ns  *network.NetNS     // or nil
	opt bool               // the marker of the TCP option
}

// PNETs returns the pnetid table of the stack: Config.PNETs, or a table of its own.
func (s *Stack) PNETs() *pnet.Table { return s.pnets }

// OptionError returns why the stack cannot announce SMC in the TCP handshake, or nil. If it
// is not nil, SMC-R is used only with Config.AssumeSMC.
func (s *Stack) OptionError() error { return s.opt.err }

// newPeerID returns the identity of this instance: a random instance number and the address
// of a RoCE port (RFC 7609, appendix A.2.1).
func (s *Stack) newPeerID(mac smc.MAC) smc.PeerID {
	return smc.NewPeerID(uint16(s.cfg.random()), mac)
}

// identity returns the peer ID. The first device that is used decides it.
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

func (s *Stack) peerIDNow() smc.PeerID {
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	return s.reg.peerID
}

// peerSMC reports whether the peer of an established connection announced SMC, or is assumed
// to speak it. After an error it is not known whether the peer waits for CLC messages or for
// data, so the connection cannot be used.
func (s *Stack) peerSMC(tcp *net.TCPConn) (smc bool, err error) {
	if s.opt.marker == nil {
		return s.opt.assumed(addrPort(tcp.RemoteAddr()).Addr()), nil
	}
	rc, err := tcp.SyscallConn()
	if err != nil {
		return false, err
	}
	if cerr := rc.Control(func(fd uintptr) { smc, err = s.opt.marker.PeerSMC(int(fd)) }); cerr != nil {
		return false, cerr
	}
	return smc, err
}
