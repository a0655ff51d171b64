// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"slices"
	"sync"

	"smcr/rdmaverbs"

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

// owner calls f with the sibling of w that has gid as a version 2 entry, unless
// it is one that each netdev may have, and reports whether there is one. It
// stays open meanwhile. f must not wait: others cannot open and close.
func (s *siblings) owner(w *netWire, gid rdmaverbs.GID, f func(*netWire)) bool {
	if s == nil || isLinkLocal(gid) {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, x := range s.wires {
		if x != w && x.netns == w.netns && x.v2 != nil && slices.Contains(x.self.Load().v2, gid) {
			f(x)
			return true
		}
	}
	return false
}

// netnsID tells network namespaces apart: that of the calling thread.
func netnsID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("softroce: network namespace: %w", err)
	}
	return st.Ino, nil
}
