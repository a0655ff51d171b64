// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/engine"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// Config configures a [Stack]. The zero value is good: software RoCE on
// whatever netdev the route to a peer takes, with an engine of the stack's own.
type Config struct {
	// Providers have the RDMA devices, the preferred provider first: on a netdev
	// that several serve, the first one whose port is active is used. None means
	// software RoCE. Then the stack also has the enterprise ID [DefaultUEID], by
	// which it speaks version 2 with stacks like it, unless NoVersion2 is set.
	Providers []rdmaverbs.Provider
	// NoEngine leaves the packets of that software RoCE to goroutines. Otherwise
	// the stack has an engine (package engine): one thread, whose work goroutines
	// in Read, Write and the like do in its place where they can. It ends with
	// Close. With Providers there is none.
	NoEngine bool
	// Spin is how long the engine, or a goroutine in its place, looks for more
	// to do before it sleeps. Longer is a shorter wait for data that come just
	// then, and more CPU time. Zero means engine.DefaultSpin; less than zero is
	// not at all, and leaves all waiting to the engine's thread.
	Spin time.Duration
	// AssumeSMC lists the peers that speak SMC where the TCP handshake cannot
	// tell, because the eBPF program that announces SMC there is not permitted
	// or NoOption is set. These peers must have this host in their lists. With
	// the program the handshake alone decides.
	AssumeSMC []netip.Prefix
	// NoOption keeps New from loading the eBPF program.
	NoOption bool
	// NetDevs are the netdevs that may carry RoCE. Empty means all.
	NetDevs []string
	// PNETs is the pnetid table, shared with whoever changes it. Nil means
	// a new one.
	PNETs *pnet.Table
	// MaxLinks and MaxConns bound a link group: 1 to 8 links, where the peer
	// takes as many (Linux 2) and both hosts have the devices, and 1 to 255
	// connections. Zero means 2 and 255. In version 1 the least is 2 links (RFC
	// 7609, section 2.2.2); in version 2 the most is 2. What the server has
	// decides how many connections a group takes.
	MaxLinks, MaxConns int
	// RecvBuf is the size of an RMB element in bytes, rounded up to 16 KiB
	// times a power of two, at most 512 KiB; SendBuf that of the send buffer, 4
	// KiB to 64 MiB. Zero means DefaultBuf. A TCP socket whose SO_RCVBUF was set to
	// more than RecvBuf gets a larger element (RFC 7609, section 4.1).
	RecvBuf, SendBuf int
	// EyeCatcher makes RMB elements begin with the 4 bytes of RFC 7609,
	// section 4.2, which Linux peers refuse. Without it they begin with data,
	// as Linux has it, unless a peer turns out to be one that needs them.
	EyeCatcher bool
	// Limits bound what the stack takes, in sum and for each user.
	Limits Limits
	// GroupIdle is how long a server keeps a link group without connections.
	// A client keeps it a tenth longer, at most 10 s, so that it is the server
	// that ends the group. Zero means 10 minutes, as with Linux.
	GroupIdle time.Duration
	// NoVersion2 keeps the stack to SMC version 1. Otherwise it speaks
	// version 2 too as soon as it has an enterprise ID.
	NoVersion2 bool
	// Hostname is what listings show, here and at peers of version 2. Empty
	// means the system's.
	Hostname string
	// Engines watch the TCP connections below those of SMC-R, which takes a
	// goroutine for each otherwise. Link groups are spread among them; the devices
	// should have them, in this order, as their pollers. They must outlive the
	// stack.
	Engines []*engine.Loop
	// Log takes what an operator should know. Nil discards it.
	Log *slog.Logger

	network network.Network      // nil: the network namespace of the thread that calls New
	option  network.OptionMarker // nil: the eBPF program of package tcpopt

	release0   bool                              // tests: a stack from before version 2.1
	tuneTimers func(smc.Role, *linkgroup.Timers) // tests
	random     func() uint32                     // simulations; else the runtime's
	sendChunk  int                               // tests: linkgroup.Config.SendChunk
}

// DefaultBuf is the size in bytes of send buffers and RMB elements unless
// Config says otherwise: the largest of RFC 7609. Both programs read and write
// them without a process between, so nothing else holds data when one of them
// waits for the other. Memory is what was written to.
const DefaultBuf = 512 << 10

func (c *Config) setDefaults() error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.RecvBuf == 0 {
		c.RecvBuf = DefaultBuf
	}
	if c.SendBuf == 0 {
		c.SendBuf = DefaultBuf
	}
	if c.RecvBuf < 0 || c.RecvBuf > smc.MaxSizeCodeRFC.Bytes() || c.SendBuf < 4096 || c.SendBuf > 64<<20 {
		return fmt.Errorf("userstack: buffer sizes %d (receive) and %d (send): must be at most %d and %d bytes", c.RecvBuf, c.SendBuf, smc.MaxSizeCodeRFC.Bytes(), 64<<20)
	}
	if c.MaxLinks < 0 || c.MaxLinks > linkgroup.MaxLinks {
		return fmt.Errorf("userstack: %d links per group: must be 1 to %d", c.MaxLinks, linkgroup.MaxLinks)
	}
	if c.GroupIdle < 0 {
		return fmt.Errorf("userstack: link groups end after %v idle: must not be negative", c.GroupIdle)
	}
	if c.MaxConns < 0 || c.MaxConns > 255 {
		return fmt.Errorf("userstack: %d connections per group: must be 1 to 255", c.MaxConns)
	}
	if err := c.Limits.setDefaults(); err != nil {
		return err
	}
	if c.PNETs == nil {
		c.PNETs = new(pnet.Table)
	}
	if c.random == nil {
		c.random = rand.Uint32
	}
	if c.Hostname == "" {
		h, err := os.Hostname()
		if err != nil {
			return errors.Join(errors.New("userstack: no host name"), err)
		}
		c.Hostname = h
	}
	return nil
}

// release returns the latest release of version 2 that the stack speaks.
func (c *Config) release() uint8 {
	if c.release0 {
		return 0
	}
	return wire.ReleaseV21
}

// limits returns the most connections and links that the stack takes in a link group of
// version 2.
func (c *Config) limits() (conns, links uint8) {
	conns, links = rendezvous.MaxConnsV2, rendezvous.MaxLinksV2
	if c.MaxConns > 0 {
		conns = uint8(max(c.MaxConns, rendezvous.MinConnsV2))
	}
	if c.MaxLinks == 1 {
		links = 1
	}
	return conns, links
}
