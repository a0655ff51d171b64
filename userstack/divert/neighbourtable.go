// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// hostNeighbours is the neighbour table of the network namespace that host is a handle for.
type hostNeighbours struct {
	host   *netlink.Handle
	events *nl.NetlinkSocket
}

var _ neighbourTable = hostNeighbours{}

// openNeighbours must be called by a thread of the network namespace.
func openNeighbours(host *netlink.Handle) (hostNeighbours, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_NEIGH)
	if err != nil {
		return hostNeighbours{}, fmt.Errorf("divert: watch neighbours: %w", err)
	}
	return hostNeighbours{host, s}, nil
}

func (h hostNeighbours) close() {
	if h.events != nil {
		h.events.Close()
	}
}

// watch has k hear what the entries are, and of each change, until close.
func (h hostNeighbours) watch(k *keeper) error {
	if err := h.list(k); err != nil {
		return err
	}
	for {
		timeout := unix.NsecToTimeval(int64(k.unanswered()))
		if err := h.events.SetReceiveTimeout(&timeout); err != nil {
			return fmt.Errorf("divert: watch neighbours: %w", err)
		}
		msgs, from, err := h.events.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN): // the timeout
		case errors.Is(err, unix.ENOBUFS): // some changes are lost
			if err := h.list(k); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("divert: watch neighbours: %w", err)
		case from.Pid == nl.PidKernel:
			k.hear(changesOf(msgs))
		}
	}
}

// list has k hear what the entries are.
func (h hostNeighbours) list(k *keeper) error {
	list, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Neigh, error) { return h.host.NeighList(0, unix.AF_UNSPEC) })
	if err := ignored(err, netlink.ErrDumpInterrupted); err != nil { // what has changed meanwhile is reported
		return fmt.Errorf("divert: list neighbours: %w", err)
	}
	var all []neighbourChange
	for _, n := range list {
		if c, ok := changeOf(&n); ok {
			all = append(all, c)
		}
	}
	k.listed(all)
	return nil
}

func changesOf(msgs []syscall.NetlinkMessage) (all []neighbourChange) {
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWNEIGH && m.Header.Type != unix.RTM_DELNEIGH {
			continue
		}
		n, err := netlink.NeighDeserialize(m.Data)
		if err != nil {
			continue
		}
		if c, ok := changeOf(n); ok {
			c.gone = m.Header.Type == unix.RTM_DELNEIGH
			all = append(all, c)
		}
	}
	return all
}

// changeOf is not ok for what is no neighbour of a device with Ethernet headers.
func changeOf(n *netlink.Neigh) (c neighbourChange, ok bool) {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.Family != unix.AF_INET && n.Family != unix.AF_INET6 {
		return c, false
	}
	c = neighbourChange{neighbour: neighbour{uint32(n.LinkIndex), ip}, state: n.State}
	copy(c.mac[:6], n.HardwareAddr)
	return c, n.State&valid == 0 || len(n.HardwareAddr) == 6
}

// ask implements neighbourTable.
func (h hostNeighbours) ask(n neighbour, mac [8]uint8) error {
	return h.set(n, mac, netlink.NUD_NONE, netlink.NTF_USE)
}

// keep implements neighbourTable.
func (h hostNeighbours) keep(n neighbour, mac [8]uint8) error {
	return h.set(n, mac, netlink.NUD_STALE, 0)
}

// set makes an entry, or changes it. It never takes the place of an address that the kernel uses: that is what
// distinguishes NeighAppend, which has no NLM_F_REPLACE.
func (h hostNeighbours) set(n neighbour, mac [8]uint8, state, flags int) error {
	err := h.host.NeighAppend(&netlink.Neigh{
		LinkIndex: int(n.dev), IP: n.ip.AsSlice(), HardwareAddr: mac[:6], State: state, Flags: flags,
	})
	if err != nil {
		return fmt.Errorf("divert: neighbour %v: %w", n.ip, err)
	}
	return nil
}

// device implements neighbourTable.
func (h hostNeighbours) device(index uint32) (name string, unplugged bool) {
	l, err := h.host.LinkByIndex(int(index))
	if err != nil {
		return fmt.Sprint(index), false
	}
	a := l.Attrs()
	return a.Name, a.Flags&net.FlagUp != 0 && a.RawFlags&unix.IFF_LOWER_UP == 0
}

// keepNeighbours keeps the addresses of neighbours for the connections that are carried, until the Diverter is closed.
func (d *Diverter) keepNeighbours() {
	err := d.neighbours.watch(newKeeper(d.neighbours, d.carried, d.cfg.Log))
	if d.ctx.Err() == nil {
		d.cfg.Log.Error("when nothing answers any more on the path of a TCP connection, its program stands still, although SMC-R goes on", "err", err)
	}
}

// carried returns where the packets of programs go whose connections SMC-R carries.
func (d *Diverter) carried() map[bpfHop]bool {
	d.mu.Lock()
	carried := map[bpfTuple]bool{}
	for t, f := range d.flows {
		if f.isCarried() {
			carried[t.key()] = true
		}
	}
	d.mu.Unlock()
	hops, err := hopsOf(d.bpf.Ways, carried)
	if err != nil {
		d.cfg.Log.Debug("cannot list where the packets of connections go", "err", err)
	}
	return hops
}

// readsPerLook: to look one connection up takes as long as to read so many places of the table, full or not.
const readsPerLook = 100

// hopsOf returns where the packets of connections go. It looks each up if they are few, and reads the whole table else.
func hopsOf(ways *ebpf.Map, of map[bpfTuple]bool) (map[bpfHop]bool, error) {
	hops := map[bpfHop]bool{}
	if len(of)*readsPerLook >= int(ways.MaxEntries()) {
		err := each(ways, func(key *bpfTuple, w *bpfWay) {
			if of[*key] {
				hops[w.Via] = true
			}
		})
		return hops, err
	}
	var w bpfWay
	for key := range of {
		if err := look(ways, key, &w); err == nil {
			hops[w.Via] = true
		} else if !errors.Is(err, ebpf.ErrKeyNotExist) { // it has ended
			return hops, fmt.Errorf("divert: look for the way of a connection: %w", err)
		}
	}
	return hops, nil
}
