// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What a program receives comes as if by the device by which it has sent last. A program that only receives sends nothing but
// acknowledgements, so if that device takes nothing for it any more, it would receive nothing again: SMC-R may go on by
// another device, and its bytes would not arrive. So when devices, addresses or routes change, the stack asks the kernel whether it takes a packet
// of the peer by the device, and looks for another one if it does not:
//
//	a device                             | packets of the program come by it
//	-------------------------------------+------------------------------------------------------------------
//	by which the program has sent last   | if the kernel takes them: it is up, the address is there, the
//	                                     | source is one that may come by it (rp_filter)
//	of the route to the peer             | else, if it is one of this stack, the kernel takes them, and they are for the
//	                                     | program's socket, which may be bound to another device
//	of the others of this stack          | likewise
//	none                                 | then they are lost until one of these changes
//
// As soon as the program sends, the device is that by which it did: see went in bpf/leaving.h.
//
// Without a route to the peer, what the program sends does not reach the stack. Its TCP tries again more and more rarely, so it would
// stand still for as long again. So when there is a route again, and a device, inner says what it has: it gets a packet with a sequence
// number that is over, as if it was asked whether it lives (keep-alive), and answers with an acknowledgement (RFC 9293, section 3.10.7.4).
// That has the program's TCP send at once what it could not send. It does not help a program that only receives: for inner, its packets
// were sent and lost.

// movesEach is how often at most the devices of connections are looked at. Each look takes some system calls for a connection.
const movesEach = time.Second

// changes is what the kernel reports of devices, addresses, routes and rules.
type changes struct{ events *vnl.NetlinkSocket }

// openChanges must be called by a thread of the network namespace.
func openChanges() (changes, error) {
	s, err := vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF)
	if err != nil {
		return changes{}, fmt.Errorf("divert: watch routes: %w", err)
	}
	return changes{s}, nil
}

func (c changes) close() {
	if c.events != nil {
		c.events.Close()
	}
}

// watchChanges notes that there were changes, until the Diverter is closed.
func (d *Diverter) watchChanges() {
	defer d.twice.never()
	for {
		// What has changed is of no interest, and neither is whether some reports are lost.
		if _, _, err := d.changes.events.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			if d.ctx.Err() == nil {
				d.cfg.Log.Error("programs that only receive stand still when their device goes", "err", err)
			}
			return
		}
		d.changed.Store(true)
		d.twice.forget()
	}
}

// sweepMoves looks at the devices of the connections if something has changed.
func (d *Diverter) sweepMoves(now time.Time, up func(dev uint32) bool) {
	if d.sockets.diag == nil || now.Sub(d.moved) < movesEach || !d.changed.Swap(false) {
		return
	}
	d.moved = now
	d.mu.Lock()
	all := make([]*Flow, 0, len(d.flows))
	for _, f := range d.flows {
		all = append(all, f)
	}
	var devs []uint32
	for index := range d.devices {
		devs = append(devs, uint32(index))
	}
	d.mu.Unlock()
	slices.Sort(devs)
	m := mover{d: d, up: up, devs: devs, takes: map[arrival]bool{}, routes: map[arrival]uint32{}}
	for _, f := range all {
		m.move(f)
	}
}

// A mover moves connections to other devices. It remembers what the kernel has said.
type mover struct {
	d      *Diverter
	up     func(dev uint32) bool
	devs   []uint32 // of this stack
	takes  map[arrival]bool
	routes map[arrival]uint32 // without dev
}

// An arrival is that of packets by a device.
type arrival struct {
	from, to netip.Addr
	dev      uint32
}

// move has the packets of f come by a device by which the kernel takes them, if there is one.
func (m *mover) move(f *Flow) {
	if f.past() {
		return
	}
	was := f.comesBy()
	peer := arrival{from: f.Tuple.Remote.Addr(), to: f.Tuple.Local.Addr()}
	route := m.route(peer)
	f.mu.Lock()
	own := f.own
	f.own.stranded = true
	f.mu.Unlock()
	if own.moved != was { // the program has sent since
		own.dev = was
	}
	for _, dev := range append([]uint32{own.dev, route}, m.devs...) {
		peer.dev = dev
		if dev != own.dev && (!slices.Contains(m.devs, dev) || !m.isFor(f, dev)) || !m.up(dev) || !m.taken(peer) {
			continue
		}
		if dev != was && f.goesBy(dev, was, own.dev) {
			m.d.cfg.Log.Debug("the packets of a connection come by another device", "connection", f.Tuple, "device", dev, "before", was)
		}
		if route != 0 {
			f.reached(own.stranded)
		}
		return
	}
}

// isFor reports whether packets by a device are for the socket of the program.
func (m *mover) isFor(f *Flow, dev uint32) bool {
	_, err := m.d.sockets.state(socketID{f.Tuple, f.Cookie, dev})
	return err == nil
}

// taken reports whether the kernel takes packets for itself.
func (m *mover) taken(a arrival) bool {
	is, known := m.takes[a]
	if !known {
		routes, err := m.d.host.RouteGetWithOptions(a.to.AsSlice(), &netlink.RouteGetOptions{IifIndex: int(a.dev), SrcAddr: a.from.AsSlice()})
		is = err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
		m.takes[a] = is
	}
	return is
}

// route returns the device of the route to a peer, or 0.
func (m *mover) route(a arrival) (dev uint32) {
	dev, known := m.routes[a]
	if !known {
		routes, err := m.d.host.RouteGetWithOptions(a.from.AsSlice(), &netlink.RouteGetOptions{SrcAddr: a.to.AsSlice()})
		if err == nil && len(routes) == 1 {
			dev = uint32(routes[0].LinkIndex)
		}
		m.routes[a] = dev
	}
	return dev
}

// goesBy has the packets of f come by another device than before, unless the program has sent meanwhile. own is the device by which it has
// sent last.
func (f *Flow) goesBy(dev, before, own uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.alter(func(w *bpfWay) bool {
		is := w.Isn == f.isn && w.Via.Dev == before
		w.Via = bpfHop{Dev: dev}
		return is
	})
	if err != nil {
		return false
	}
	f.own.dev, f.own.moved = own, dev
	return true
}

// reached takes note that packets pass in both directions between inner and the program. If they did not before, inner says what it has.
func (f *Flow) reached(again bool) {
	f.mu.Lock()
	inner, passes := f.inner, f.spliced
	f.own.stranded = false
	f.mu.Unlock()
	if !again || passes {
		return
	}
	inner.info(func(i *unix.TCPInfo) {
		f.d.write(f.first.question(inner.end.rcv+uint32(i.Bytes_received)-1).to(forStack, 0))
	})
}
