// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"smcr/guard"
	"smcr/internal/retry"
	"smcr/rdmaverbs"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopbackMAC is the MAC address that devices on lo report. The address of lo
// itself is all zeros, which peers do not accept as an address. It is locally
// administered, and the same on every host because it never leaves the host.
// Frames on lo still have zeros, because the kernel accepts only these.
var loopbackMAC = [6]byte{0x02, 0, 0, 0, 0, 0}

// facts reads netdev facts from the network namespace in which it was made.
// It is not safe for concurrent use.
type facts struct {
	h *netlink.Handle
}

// newFacts opens a route netlink socket in the calling thread's network
// namespace.
func newFacts() (*facts, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("softroce: open route netlink: %w", err)
	}
	return &facts{h: h}, nil
}

func (f *facts) close() { f.h.Close() }

// byName reads the facts about the netdev with that name. If there is none, the
// error wraps rdmaverbs.ErrNoDevice.
func (f *facts) byName(name string) (*netdevInfo, error) {
	l, err := f.h.LinkByName(name)
	if err != nil {
		return nil, linkError(fmt.Sprintf("netdev %q", name), err)
	}
	return f.info(l)
}

// byIndex is byName for an interface index.
func (f *facts) byIndex(index int) (*netdevInfo, error) {
	l, err := f.h.LinkByIndex(index)
	if err != nil {
		return nil, linkError(fmt.Sprintf("netdev with index %d", index), err)
	}
	return f.info(l)
}

func linkError(what string, err error) error {
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return fmt.Errorf("softroce: %s: %w", what, rdmaverbs.ErrNoDevice)
	}
	return fmt.Errorf("softroce: read %s: %w", what, err)
}

// netdevs returns the names of all netdevs that can carry RoCE frames.
func (f *facts) netdevs() ([]string, error) {
	links, err := retry.Whole(netlink.ErrDumpInterrupted, f.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("softroce: list netdevs: %w", err)
	}
	var names []string
	for _, l := range links {
		if carriesEthernet(l.Attrs()) {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func carriesEthernet(a *netlink.LinkAttrs) bool {
	return a.Flags&net.FlagLoopback != 0 || a.EncapType == "ether" && len(a.HardwareAddr) == 6
}

func (f *facts) info(l netlink.Link) (*netdevInfo, error) {
	a := l.Attrs()
	if !carriesEthernet(a) {
		return nil, fmt.Errorf("%w: %s", errNotEthernet, a.Name)
	}
	i := &netdevInfo{
		Name:     a.Name,
		Index:    a.Index,
		HWAddr:   slices.Clone(a.HardwareAddr),
		MTU:      a.MTU,
		Up:       a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0,
		loopback: a.Flags&net.FlagLoopback != 0,
	}
	if v, ok := l.(*netlink.Vlan); ok {
		i.VLAN = uint16(v.VlanId)
	}
	if i.loopback {
		i.HWAddr = slices.Clone(loopbackMAC[:])
	}
	addrs, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Addr, error) { return f.h.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("softroce: read addresses of %s: %w", a.Name, err)
	}
	var ips []netip.Addr
	for _, ad := range addrs {
		// A tentative address may belong to another host.
		if ad.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			continue
		}
		if ip, ok := netip.AddrFromSlice(ad.IP); ok {
			ips = append(ips, ip.Unmap())
		}
	}
	i.GIDs = gidTable(a.Name, [6]byte(i.HWAddr), ips)
	i.hasDefault = slices.Contains(ips, defaultGID([6]byte(i.HWAddr)).Addr())
	return i, nil
}

// watchNetdev calls report, from one goroutine, with the facts about the netdev
// of that index at the beginning and after each change: up or down, MTU, name,
// MAC, addresses, deletion. No change after the call is missed; changes in
// quick succession may be reported as one. The report that the netdev is gone
// is the last one. Close stops the watch and waits until report has returned,
// so report must not call it. The watch belongs to the network namespace of the
// calling thread. g handles panics; it may be nil.
func watchNetdev(index int, g *guard.Guard, report func(netdevChange)) (io.Closer, error) {
	f, err := newFacts()
	if err != nil {
		return nil, err
	}
	conn, err := mdnetlink.Dial(unix.NETLINK_ROUTE, &mdnetlink.Config{
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
	})
	if err != nil {
		f.close()
		return nil, fmt.Errorf("softroce: subscribe to netdev changes: %w", err)
	}
	w := &netdevWatch{index: index, guard: g, report: report, facts: f, conn: conn, quit: make(chan struct{})}
	w.done.Go(w.run) // No guard: look has one.
	return w, nil
}

// netdevWatch follows one netdev. Its goroutine owns all fields but quit.
type netdevWatch struct {
	index  int
	guard  *guard.Guard // nil: panics end the process
	report func(netdevChange)
	facts  *facts
	conn   *mdnetlink.Conn
	last   netdevInfo
	once   sync.Once
	quit   chan struct{}
	done   sync.WaitGroup
}

// Close implements io.Closer.
func (w *netdevWatch) Close() error {
	w.once.Do(func() {
		close(w.quit)
		w.conn.Close()
	})
	w.done.Wait()
	return nil
}

func (w *netdevWatch) run() {
	defer w.facts.close()
	for gone := w.look(); !gone; {
		msgs, err := w.conn.Receive()
		select {
		case <-w.quit:
			return
		default:
		}
		switch {
		case errors.Is(err, unix.ENOBUFS):
			// Messages were lost: read the facts in any case.
		case err != nil:
			// No other error is expected; do not spin if there is one.
			select {
			case <-w.quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
		case !slices.ContainsFunc(msgs, w.concerns):
			continue
		}
		gone = w.look()
	}
}

// concerns reports whether m is about the watched netdev. ifinfomsg and
// ifaddrmsg both have the interface index in bytes 4 to 7.
func (w *netdevWatch) concerns(m mdnetlink.Message) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= 8 && int(nativeUint32(m.Data[4:])) == w.index
	}
	return false
}

// look reads the facts again and reports them if they changed. It returns
// whether the netdev is gone.
func (w *netdevWatch) look() (gone bool) {
	if w.guard == nil {
		return w.lookOnce()
	}
	_ = w.guard.Do("the watch on a netdev", func() { gone = w.lookOnce() })
	return gone
}

func (w *netdevWatch) lookOnce() (gone bool) {
	i, err := w.facts.byIndex(w.index)
	switch {
	case errors.Is(err, rdmaverbs.ErrNoDevice):
		w.report(netdevChange{Info: w.last, Gone: true})
		return true
	case err != nil:
		return false // the next message leads to another look
	case sameFacts(i, &w.last):
		return false
	}
	w.last = *i
	w.report(netdevChange{Info: *i})
	return false
}

func sameFacts(a, b *netdevInfo) bool {
	return a.Name == b.Name && a.Index == b.Index && bytes.Equal(a.HWAddr, b.HWAddr) && a.MTU == b.MTU &&
		a.Up == b.Up && a.VLAN == b.VLAN && a.hasDefault == b.hasDefault && slices.Equal(a.GIDs, b.GIDs)
}
