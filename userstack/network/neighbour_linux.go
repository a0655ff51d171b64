// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"smcr/smc"
)

var _ Neighbours = (*Namespace)(nil)

// neighbours asks the kernel for entries of its neighbour table, and keeps what it has said for a moment.
type neighbours struct {
	sock *nl.SocketHandle

	mu    sync.Mutex
	known map[neighbour]knownNeighbour
}

type neighbour struct {
	dev  int
	addr netip.Addr
}

type knownNeighbour struct {
	mac   smc.MAC
	until time.Time
}

const (
	// mostNeighbours is how many are kept, and neighbourFresh for how long.
	mostNeighbours = 1024
	neighbourFresh = time.Second
)

func openNeighbours() (*neighbours, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network: open the neighbour table: %w", err)
	}
	return &neighbours{sock: &nl.SocketHandle{Socket: s}, known: map[neighbour]knownNeighbour{}}, nil
}

func (n *neighbours) close() { n.sock.Close() }

// Neighbour implements [Neighbours].
func (n *Namespace) Neighbour(local, remote netip.Addr) (smc.MAC, bool) {
	rt, err := n.Route(local, remote)
	if err != nil || rt.Gateway.IsValid() {
		return smc.MAC{}, false
	}
	return n.neighbours.of(neighbour{rt.IfIndex, remote.Unmap().WithZone("")})
}

func (n *neighbours) of(who neighbour) (smc.MAC, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if k, ok := n.known[who]; ok && now.Before(k.until) {
		return k.mac, true
	}
	mac, ok := n.ask(who)
	if ok {
		if len(n.known) >= mostNeighbours {
			clear(n.known)
		}
		n.known[who] = knownNeighbour{mac, now.Add(neighbourFresh)}
	}
	return mac, ok
}

// valid are the states of an entry whose Ethernet address the kernel uses.
const valid = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// ask asks for one entry, which Linux answers since 5.0.
func (n *neighbours) ask(who neighbour) (mac smc.MAC, ok bool) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_REQUEST)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: n.sock}
	family := unix.AF_INET6
	if who.addr.Is4() {
		family = unix.AF_INET
	}
	req.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(who.dev)})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, who.addr.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil || len(msgs) != 1 {
		return mac, false
	}
	e, err := netlink.NeighDeserialize(msgs[0])
	if err != nil || len(e.HardwareAddr) != len(mac) || e.State&valid == 0 {
		return mac, false
	}
	copy(mac[:], e.HardwareAddr)
	return mac, mac != smc.MAC{}
}
