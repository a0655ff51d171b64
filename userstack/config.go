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
	"smcr/quota"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/engine"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// Config configures a [Stack]. The zero value is good: the stack uses software RoCE on the
// netdev of the route to each peer, and makes an engine for itself.
type Config struct {
	// Providers have the RDMA devices, the preferred provider first. If several providers
	// serve a netdev, the stack uses the first one whose port is active. None means software
	// RoCE. Then the stack also has the enterprise ID [DefaultUEID], with which it uses
	// version 2 with other such stacks, unless NoVersion2 is set.
	Providers []rdmaverbs.Provider
	// NoEngine makes goroutines handle the packets of software RoCE. Otherwise the stack has
	// an engine (package engine). An engine is one thread. Goroutines in Read, Write and
	// similar methods do its work where they can. Close ends it. With Providers there is no
	// engine.
	NoEngine bool
	// Spin is how long the engine, or a goroutine in its place, looks for more work before it
	// sleeps. A longer time means less delay and more CPU time. Zero means
	// engine.DefaultSpin. With less than zero it sleeps at once, and only the thread of the
	// engine waits.
	Spin time.Duration
	// AssumeSMC lists the peers that are known to speak SMC. The stack uses this list only if
	// the TCP handshake cannot tell: because the eBPF program that announces SMC is not
	// permitted, or because NoOption is set. These peers must have this host in their lists.
	// With the program, only the handshake decides.
	AssumeSMC []netip.Prefix
	// NoOption makes New load no eBPF program.
	NoOption bool
	// Cgroup is a directory in a mounted cgroup v2 tree: the stack announces SMC for sockets
	// of this part of the tree. Empty means all of the tree that the process sees. In a
	// container, that is the container alone.
	Cgroup string
	// NetDevs are the netdevs that may carry RoCE. Empty means all.
	NetDevs []string
	// PNETs is the pnetid table. Others may change it while the stack uses it. Nil means a
	// new one.
	PNETs *pnet.Table
	// MaxLinks and MaxConns limit a link group: 1 to 8 links and 1 to 255 connections. Zero
	// means 2 and 255. There are more than 2 links only if the peer permits it (Linux permits
	// 2) and if both hosts have the devices. Version 1 requires at least 2 (RFC 7609, section
	// 2.2.2). A version 2 group of this stack has at most 2 links. The configuration of the
	// server decides how many connections a group takes.
	MaxLinks, MaxConns int
	// RecvBuf is the least size of an RMB element in bytes. It is rounded up to 16 KiB times a
	// power of two, at most 512 KiB. SendBuf is the size of the send buffer, 4 KiB to 64 MiB.
	// Zero means DefaultBuf. A connection gets a larger element if the receive buffer of its
	// TCP socket is larger: SO_RCVBUF if the program has set it, otherwise the default of
	// net.ipv4.tcp_rmem (RFC 7609, section 4.1).
	RecvBuf, SendBuf int
	// EyeCatcher makes RMB elements begin with the 4 bytes of RFC 7609, section 4.2. Linux
	// peers refuse these. Without it, elements begin with data, as in Linux, unless a peer
	// needs the 4 bytes.
	EyeCatcher bool
	// Limits limit what the stack uses, in sum and for each user.
	Limits Limits
	// GroupIdle is how long a server keeps a link group without connections. A client keeps
	// it 10 percent longer, but at most 10 s longer, so normally the server ends the group.
	// Zero means 10 minutes, as in Linux.
	GroupIdle time.Duration
	// StallTime is how long a peer may stand still, because its stack is stopped or its machine
	// is suspended, without the end of its link groups. They end after less than 16/7 times
	// as long. The setting of the peer decides how long this stack may stand still. A longer
	// time delays the change to another link after a failure that no device reports. Zero
	// means DefaultStallTime. The limits are 1 s and 5 min.
	StallTime time.Duration
	// NoVersion2 limits the stack to version 1 of SMC. Otherwise the stack also uses version
	// 2 for connections over IPv4 if it has an enterprise ID, and the device RoCE version 2. The GIDs
	// of version 2 are IPv4 addresses, as in Linux, so a connection over IPv6 uses version 1, and
	// both hosts must be in one subnet. So does each connection if another program has UDP port
	// 4791, which RoCE version 2 needs: the provider of the devices says so in its log.
	NoVersion2 bool
	// Hostname is the name of this host in listings, here and at peers of version 2. Empty
	// means the name that the system has.
	Hostname string
	// Engines watch the TCP connections below SMC-R connections. Without engines, each of
	// them needs a goroutine. Link groups are distributed among the engines. The devices
	// should use the same engines as pollers, in the same order. They must not end before the
	// stack.
	Engines []*engine.Loop
	// Log gets what an administrator should know. Nil discards it.
	Log *slog.Logger

	network network.Network      // nil: the network namespace of the thread that calls New
	option  network.OptionMarker // nil: the eBPF program of package tcpopt

	tune   tuning        // tests
	random func() uint32 // simulations; else the runtime's
}

// tuning is what tests change.
type tuning struct {
	release0  bool                              // a stack from before version 2.1
	timers    func(smc.Role, *linkgroup.Timers) // nil: nothing
	sendChunk int                               // linkgroup.Config.SendChunk
}

// DefaultBuf is the size in bytes of send buffers and RMB elements if Config has no other
// value. It is the largest size of RFC 7609. No other process buffers data between the two
// programs, so the buffers are all that there is while one program waits for the other. Only
// pages that were written to use memory.
const DefaultBuf = 512 << 10

// DefaultStallTime is the StallTime of a Config that has no other value. It covers a live
// migration or a machine without free memory. It is more than a Linux host with an RDMA
// adapter allows its peers, which is 1 s, and much less than TCP allows.
const DefaultStallTime = 7 * time.Second

// The limits of StallTime.
const (
	minStallTime = time.Second
	maxStallTime = 5 * time.Minute
)

func (c *Config) setDefaults() error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = quota.LimitLog(c.Log)
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
	if c.StallTime == 0 {
		c.StallTime = DefaultStallTime
	}
	if c.StallTime < minStallTime || c.StallTime > maxStallTime {
		return fmt.Errorf("userstack: peers may stand still for %v: must be %v to %v", c.StallTime, minStallTime, maxStallTime)
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

// release returns the latest release of version 2 that the stack supports.
func (c *Config) release() uint8 {
	if c.tune.release0 {
		return 0
	}
	return wire.ReleaseV21
}

// limits returns how many connections and links the stack accepts in a link group of version
// 2.
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
