// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"slices"
	"sync"

	"smcr/smc"

	"golang.org/x/sys/unix"
)

// siblings are the open wires of a provider. A host with several netdevs has
// packets of RoCE version 2 come to one for an address of another: where two
// are in one subnet, either answers ARP for the addresses of both. And packets
// from one to the other never leave the host: the IP stack has them go through
// lo, past the sockets, which are bound to the netdevs.
type siblings struct {
	mu    sync.RWMutex
	wires []*netWire
}

// add makes w known.
func (s *siblings) add(w *netWire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wires = append(s.wires, w)
}

// remove forgets w. Nothing is handed to it afterwards.
func (s *siblings) remove(w *netWire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wires = slices.DeleteFunc(s.wires, func(x *netWire) bool { return x == w })
}

// owner returns the sibling of w that has gid as a version 2 entry, unless it is
// one that each netdev may have, or nil. It stays open while s.mu, which is
// held, is.
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

// send hands version 2 packets that w is to send to the sibling that they are
// for, and reports whether there is one.
func (s *siblings) send(w *netWire, dst *path, pkts []packet) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.owner(w, dst.dgid)
	if x != nil {
		x.loop.send(dst, pkts)
	}
	return x != nil
}

// aside sends packets of w, whose netdev is down, through each of its siblings.
// The host still has the address, which Linux lets it send from anywhere.
func (s *siblings) aside(w *netWire, dst *path, pkts []packet) {
	if s == nil {
		return
	}
	s.mu.RLock()
	wires := slices.Clone(s.wires)
	s.mu.RUnlock()
	for _, x := range wires {
		if x == w || x.netns != w.netns || x.loopback {
			continue
		}
		x.mu.RLock()
		if !x.closed && !x.gone.Load() {
			_ = x.transmit(dst, pkts) // its own device hears of it
		}
		x.mu.RUnlock()
	}
}

// sendAside sends packets for a netdev that is down through others of the host,
// if any of these reaches the peer.
func (w *netWire) sendAside(dst *path, pkts []packet) { w.siblings.aside(w, dst, pkts) }

// receive hands message i, which w received, to the sibling that it is for, and
// reports whether there is one.
func (s *siblings) receive(w *netWire, i, family int, m *udpMeta, rx *rxBatch) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.owner(w, m.dst)
	if x == nil {
		return false
	}
	mine := len(rx.in)
	x.v2.split(i, family, m, rx, x.self.Load(), &x.stats)
	x.loop.pass(rx.in[mine:])
	rx.in = rx.in[:mine]
	return true
}

// netnsID tells network namespaces apart: that of the calling thread.
func netnsID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("softroce: network namespace: %w", err)
	}
	return st.Ino, nil
}
