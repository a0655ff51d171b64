// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"slices"
	"sync"

	"smcr/smc"

	"golang.org/x/sys/unix"
)

// siblings are the open wires of a provider. On a host with several netdevs, a
// RoCE version 2 packet for an address of one may arrive at another: if both
// are in one subnet, each answers ARP for the addresses of both. Packets
// between two netdevs of the host never leave it: the IP stack sends them
// through lo, where the sockets, which are bound to the netdevs, do not receive
// them.
type siblings struct {
	mu      sync.RWMutex
	wires   []*netWire // those with version 2
	lacking []*netWire // those that should have it, but lack it
	// opening is held while a device is opened: see Provider.LacksV2.
	opening sync.Mutex
}

// add adds w.
func (s *siblings) add(w *netWire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wires = append(s.wires, w)
}

// remove removes w. It gets no packets from siblings afterwards.
func (s *siblings) remove(w *netWire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wires = slices.DeleteFunc(s.wires, func(x *netWire) bool { return x == w })
	s.lacking = slices.DeleteFunc(s.lacking, func(x *netWire) bool { return x == w })
}

// lacks adds w, which has no version 2 but should.
func (s *siblings) lacks(w *netWire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacking = append(s.lacking, w)
}

// whyLacking returns why an open wire has no version 2, or nil if none lacks it, and whether
// there are open wires that have it.
func (s *siblings) whyLacking() (why error, some bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.lacking) > 0 {
		why = s.lacking[0].lacks
	}
	return why, len(s.wires) > 0
}

// owner returns the sibling of w that has gid as a version 2 entry, or nil. It
// returns nil for a link-local GID, which several netdevs may have. s.mu is
// held; the sibling stays open as long as it is.
func (s *siblings) owner(w *netWire, gid smc.GID) *netWire {
	if isLinkLocal(gid) {
		return nil
	}
	for _, x := range s.wires {
		if x != w && x.netns == w.netns && x.v2 != nil && slices.Contains(x.self.Load().v2, gid) {
			return x
		}
	}
	return nil
}

// send gives version 2 packets of w directly to the sibling that has their
// destination. It reports whether there is one.
func (s *siblings) send(w *netWire, dst *path, pkts []packet) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.owner(w, dst.dgid)
	if x != nil {
		x.loop.send(dst, w.sourcePort(dst), pkts)
	}
	return x != nil
}

// sendVia sends packets of w, whose netdev is down, through each of its
// siblings. The host still has the address, and Linux permits it as source on
// any netdev. The packets have the source port of w, because the peer accepts no
// other.
func (s *siblings) sendVia(w *netWire, dst *path, pkts []packet) {
	if s == nil {
		return
	}
	s.mu.RLock()
	wires := slices.Clone(s.wires)
	s.mu.RUnlock()
	from := w.sources()
	for _, x := range wires {
		if x == w || x.netns != w.netns || x.loopback {
			continue
		}
		x.mu.RLock()
		if from != nil {
			from.mu.RLock()
		}
		if !x.closed && !x.gone.Load() {
			_ = x.transmit(from, dst, pkts) // x reports its own errors to its device
		}
		if from != nil {
			from.mu.RUnlock()
		}
		x.mu.RUnlock()
	}
}

// sendViaSiblings sends packets for a netdev that is down through others of the host,
// if any of these reaches the peer.
func (w *netWire) sendViaSiblings(dst *path, pkts []packet) { w.siblings.sendVia(w, dst, pkts) }

// receive gives message i, which w received, to the sibling that has its
// destination. It reports whether there is one.
func (s *siblings) receive(w *netWire, i, family int, m *udpMeta, rx *rxBatch) bool {
	return s.give(w, m.dst, rx, func(x *netWire) { x.v2.split(i, family, m, rx, x.self.Load(), &x.stats) })
}

// give gives what w received for dst to the sibling that has dst: split puts its packets
// into rx. It reports whether there is one.
func (s *siblings) give(w *netWire, dst smc.GID, rx *rxBatch, split func(*netWire)) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.owner(w, dst)
	if x == nil {
		return false
	}
	mine := len(rx.in)
	split(x)
	x.loop.pass(rx.in[mine:])
	rx.in = rx.in[:mine]
	return true
}

// netnsID returns a number that identifies the network namespace of the calling
// thread.
func netnsID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("softroce: network namespace: %w", err)
	}
	return st.Ino, nil
}
