// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"log/slog"
	"net"
	"net/netip"
	"time"

	"smcr/guard"
	"smcr/quota"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/devices"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/internal/tracing"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// Config is the configuration that a stack gives to its driver. All pointers and interfaces
// must be set, unless a comment says otherwise.
type Config struct {
	Network network.Network
	Devices *devices.Set
	Stats   *stats.Collector
	Guard   *guard.Guard
	Log     *slog.Logger
	Trace   *tracing.Hub

	// Engines serve the link groups, each group by one of them. Without engines, goroutines
	// serve the groups.
	Engines []*engine.Loop
	// Loop is the engine of the stack itself, or nil. Goroutines that read and write do its
	// work if they can.
	Loop *engine.Loop

	RecvBuf    int           // bytes of an RMB element, at least
	SendBuf    int           // bytes of a send buffer
	SendChunk  int           // bytes of a piece of send memory; 0 means the default of linkgroup
	EyeCatcher bool          // RMB elements begin with the eye catcher (RFC 7609, section 4.2)
	GroupIdle  time.Duration // for how long a server keeps a group without connections; 0 means the default
	StallTime  time.Duration // for how long a peer may stand still, at least; must not be 0

	// Limits limit what the link groups use.
	Limits Limits

	// Random returns random numbers.
	Random func() uint32
	// TuneTimers changes the timers of each new link group, for tests. It may be nil.
	TuneTimers func(smc.Role, *linkgroup.Timers)

	// PathDied is called when a link group has ended because RDMA does not pass any more on
	// its way, although TCP does. It must not block. It may be nil.
	PathDied func(lan LAN)
}

// GroupConfig is what a first contact decides for its link group.
type GroupConfig struct {
	Role smc.Role
	// PeerID is the ID of the peer in its PROPOSAL or ACCEPT. LocalPeerID is the ID of this
	// stack.
	PeerID, LocalPeerID smc.PeerID
	// Terms are the agreed terms of version 2, or nil in version 1.
	Terms *rendezvous.Terms
	// LAN is the network of the connection.
	LAN LAN
	// Owner is the user of this host whose connection it is.
	Owner uint32
	// Ports are the ports that may have links, in order of preference.
	Ports []*devices.Port
	// MaxLinks and MaxConns limit the group, as in userstack.Config.
	MaxLinks, MaxConns int
}

// LAN is the network of the connection of a first contact. All links of the group are
// on ports of this LAN and VLAN.
type LAN struct {
	Route         network.Route
	Local, Remote netip.Addr
	PNETID        string
	// Origin is by what the other host is counted, on a server.
	Origin quota.Origin
}

// TCP is the TCP connection below an SMC-R connection. *net.TCPConn implements it.
type TCP interface {
	net.Conn
	// SetLinger(0) makes Close send RST.
	SetLinger(sec int) error
}

// ConnConfig is what a rendezvous knows about its connection.
type ConnConfig struct {
	// TCP belongs to the connection from Start on.
	TCP TCP
	// Local and Remote are its addresses.
	Local, Remote netip.AddrPort
	// Owner is the process that has the connection, for listings and limits.
	Owner inside.Owner
	// RecvBuf is the receive buffer of the TCP connection in bytes, or 0 if it is not
	// known. The RMB element is not smaller (RFC 7609, section 4.1).
	RecvBuf int
}
