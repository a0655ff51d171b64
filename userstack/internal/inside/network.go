// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"errors"
	"net/netip"
)

// ErrThisHost is wrapped by the error of Network.Route for a remote address that is
// one of this network namespace.
var ErrThisHost = errors.New("the address is one of this host")

// A Network answers questions about addresses and netdevs of one network
// namespace. The real one asks rtnetlink; tests have their own.
type Network interface {
	// Route finds the netdev that leads from local (may be the zero Addr)
	// to remote. If there is no such route to another host, the error is
	// userstack.ErrNotOnLink, and ErrThisHost where that is why.
	Route(local, remote netip.Addr) (Route, error)
	// Secured reports whether IPsec is to protect the packets of a TCP
	// connection.
	Secured(local, remote netip.AddrPort) (bool, error)
	// NetDevs lists the netdevs a RoCE device can stand on.
	NetDevs() ([]NetDev, error)
}

// A Locator is a Network that knows what its namespace has. Without one a stack joins
// no programs of different stacks.
type Locator interface {
	// Owns reports whether addr is an address of this network namespace.
	Owns(addr netip.Addr) bool
	// Finds looks for a TCP connection of this network namespace by its addresses;
	// held tells whether a process has its socket.
	Finds(local, remote netip.AddrPort) (held, ok bool, err error)
}

// A NetDev is an Ethernet-like network device.
type NetDev struct {
	Name  string
	Index int
	Up    bool
	VLAN  uint16   // its VLAN id, 0 if it is none
	Lower []string // of a VLAN, the netdevs that it is stacked upon, nearest first
}

// A Route is what the stack must know of the way to a peer.
type Route struct {
	NetDev  string         // outgoing netdev
	IfIndex int            // its index
	VLAN    uint16         // its VLAN id, 0 if it is none
	Gateway netip.Addr     // next hop; the zero Addr for a neighbour
	Local   []netip.Prefix // addresses of the netdev with their prefix lengths, and the source address if a peer has it
	Peers   []string       // other netdevs of the same VLAN with an address in the same subnet: alternates for a second link
}

// PrefixOf returns the address and prefix of rt for a TCP connection from addr:
// addr itself, or where the route leads over another netdev, as it does when
// that of addr is down, the address there in whose subnet addr is.
func (rt *Route) PrefixOf(addr netip.Addr) (netip.Prefix, bool) {
	addr = addr.Unmap().WithZone("")
	for _, p := range rt.Local {
		if p.Addr() == addr {
			return p, true
		}
	}
	for _, p := range rt.Local {
		if p.Contains(addr) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// IPv6Prefixes returns the global IPv6 prefixes of rt, at most limit.
func (rt *Route) IPv6Prefixes(limit int) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range rt.Local {
		if p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && len(out) < limit {
			out = append(out, p.Masked())
		}
	}
	return out
}

// An OptionMarker writes the SMC option into the TCP handshakes of marked
// sockets and reads what the peer wrote. The real one is package tcpopt.
type OptionMarker interface {
	MarkConnect(fd int) error
	MarkListen(fd int) error
	// GateConnect and GateListen do the same for sockets that other processes
	// have, and keep these from sending while SMC is at stake.
	GateConnect(fd int) error
	GateListen(fd int) error
	// Gate returns the way to send on a connected or accepted socket to which
	// that applies. It is nil for any other.
	Gate(fd int) (Gate, error)
	// PeerSMC reports whether the peer of a connected or accepted socket
	// sent the option.
	PeerSMC(fd int) (bool, error)
	Close() error
}

// A Gate is the way of the stack to send CLC messages on a socket that other
// processes have, too. These can send once it is open. It is for one goroutine at a
// time. [tcpopt.Gate] is one.
type Gate interface {
	// Send sends msg, whole. With last the gate opens behind it.
	Send(fd int, msg []byte, last bool) error
	// Open opens the gate because of what was read from the socket, read bytes
	// in all. It does not if others have read from it, too.
	Open(fd, read int) error
	// OpenHere opens the gate of a connection on which nobody speaks CLC.
	OpenHere(fd int) error
	// OpenToData opens the gate if what the peer has sent is data, of which
	// nothing was read so far.
	OpenToData(fd int, isData func(first []byte) bool) error
}

// A Host stands in for the machine on which a stack runs. What is nil is the
// real one.
type Host struct {
	Network Network
	Option  OptionMarker
}
