// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// newGroup makes a link group without links.
func newGroup(s *shared, o owner, id [4]byte, c GroupConfig) *Group {
	g := &Group{
		s: s, owner: o, role: c.Role, terms: c.Terms, peer: c.PeerID, lan: c.LAN,
		first: make(chan error, 1),
		conns: map[member]struct{}{},
		end:   groupEnd{over: make(chan struct{})},
	}
	g.mem = groupMemory{
		pool: s.pool, stats: s.Stats, sendBuf: s.SendBuf, exec: &g.exec,
		pds: map[*devices.Device]rdmaverbs.PD{}, regions: map[*region]struct{}{},
	}
	g.loop, g.mem.shard = s.place()
	g.log = s.Log.With("lgr", fmt.Sprintf("%x", id), "role", c.Role.String(), "remote", c.LAN.Remote)
	cfg := coreConfig(s, &c)
	cfg.ID, cfg.Log = id, g.log
	g.exec.timer = time.AfterFunc(time.Hour, g.onTimer)
	g.exec.timer.Stop()
	g.core = linkgroup.New(cfg, (*groupEnv)(g), time.Now())
	return g
}

// coreConfig returns the configuration of the core.
func coreConfig(s *shared, c *GroupConfig) linkgroup.Config {
	cfg := linkgroup.Config{
		Role: c.Role, LocalPeerID: c.LocalPeerID, PeerID: c.PeerID, PeerHost: c.LAN.Remote, VLAN: c.LAN.Route.VLAN,
		MaxLinks: c.MaxLinks, MaxConns: c.MaxConns,
		SendQueue: sendDepth, SendChunk: s.SendChunk, EyeCatcher: s.EyeCatcher, ProvePath: true, Timers: timersOf(s, c.Role),
	}
	if c.Role == smc.Client {
		cfg.MaxConns = 0 // the most there can be: the server decides
	}
	if t := c.Terms; t != nil {
		cfg.Routed, cfg.PeerOurs = t.Routed, t.PeerOurs()
		cfg.Version, cfg.PeerOS, cfg.PeerRelease, cfg.MaxLinks = wire.Version2, t.Peer.OS, t.Peer.Release, int(t.MaxLinks)
		if c.Role == smc.Client || cfg.MaxConns == 0 {
			cfg.MaxConns = int(t.MaxConns)
		}
		cfg.MaxConns = min(cfg.MaxConns, int(t.MaxConns))
	}
	for _, d := range c.Ports {
		if cd, err := s.describe(d, c.Terms); err == nil {
			cfg.Devices = append(cfg.Devices, cd)
		}
	}
	return cfg
}

// describe describes a port to the core of a link group with these terms. In version 2, a port that has
// no GID in the subnet of the TCP connections is one of another subnet: see linkgroup.Device.
func (s *shared) describe(p *devices.Port, t *rendezvous.Terms) (linkgroup.Device, error) {
	d, err := p.Describe(t.Subnet())
	if err == nil || t == nil || t.Routed {
		return d, err
	}
	other, serr := s.Devices.Subnet(p)
	if serr != nil {
		return d, err
	}
	d, err = p.Describe(other)
	d.Subnet = other
	return d, err
}

// tcpGrace is how long a link group waits for the peer after the TCP connection of one of its
// connections has ended. Programs should notice within a second that the stack of their peer
// has ended.
const tcpGrace = 500 * time.Millisecond

// fresh is how long after the last sign of the peer a link counts as alive for new connections.
// After that, they wait for an acknowledgement of TEST LINK: a round trip.
const fresh = 200 * time.Millisecond

// timersOf returns the timers of a link group.
func timersOf(s *shared, role smc.Role) linkgroup.Timers {
	timers := linkgroup.DefaultTimers(role)
	timers.TCPGrace, timers.Fresh = tcpGrace, fresh
	timers.AllowSilence(longestSilence(s.StallTime))
	if idle := s.GroupIdle; idle > 0 {
		timers.Idle = idle
		if role == smc.Client {
			timers.Idle += min(idle/10, 10*time.Second)
		}
	}
	if s.TuneTimers != nil {
		s.TuneTimers(role, &timers)
	}
	return timers
}
