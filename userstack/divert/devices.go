// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// Follow adds the devices of the network namespace that want names, now and when they come to be,
// except those of another one (the ports of a bridge, what a bond joins): the upper device sees their
// packets. It must be called by a thread of the namespace, once.
func (d *Diverter) Follow(want func(name string) bool) error {
	updates := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(updates, d.ctx.Done(), netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) {
			if d.ctx.Err() == nil {
				d.cfg.Log.Warn("new devices are not seen any more: their connections stay TCP", "err", err)
			}
		},
	}); err != nil {
		return fmt.Errorf("divert: follow devices: %w", err)
	}
	links, err := retry.Whole(netlink.ErrDumpInterrupted, d.host.LinkList) // not by the subscription: other stacks would receive its question, and be warned
	if err != nil {
		return fmt.Errorf("divert: list devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		if d.fits(l, want) {
			errs = append(errs, d.AddDevice(l.Attrs().Index))
		}
	}
	// What a stack has left that was killed until now: what goes later is reported.
	errs = append(errs, d.collect())
	d.run("the watch on devices", func() {
		for u := range updates {
			d.linkChanged(u, want)
		}
	})
	return errors.Join(errs...)
}

// fits reports whether a device is one at which connections are announced.
func (d *Diverter) fits(l netlink.Link, want func(name string) bool) bool {
	a := l.Attrs()
	return a.EncapType == "ether" && a.MasterIndex == 0 && !IsOurs(a.Name) && want(a.Name)
}

func (d *Diverter) linkChanged(u netlink.LinkUpdate, want func(name string) bool) {
	index := u.Attrs().Index
	d.mu.Lock()
	has := d.devices[index]
	if u.Header.Type == unix.RTM_DELLINK {
		delete(d.devices, index)
	}
	d.mu.Unlock()
	if u.Header.Type == unix.RTM_DELLINK && IsOurs(u.Attrs().Name) {
		if err := d.collect(); err != nil {
			d.cfg.Log.Warn("what a stack has left that was killed stays", "err", err)
		}
	}
	if u.Header.Type != unix.RTM_NEWLINK {
		return
	}
	var err error
	switch fits := d.fits(u.Link, want); {
	case fits && !has:
		err = d.AddDevice(index)
	case !fits && has:
		err = d.RemoveDevice(index)
	}
	if err != nil {
		d.cfg.Log.Warn("connections of a device stay TCP", "device", u.Attrs().Name, "err", err)
	}
}

// delivers reports whether a device takes packets for the programs of this host: the kernel drops those of one that is down or gone.
func (d *Diverter) delivers(index uint32) bool {
	l, err := d.host.LinkByIndex(int(index))
	return err == nil && l.Attrs().Flags&net.FlagUp != 0
}

// twice are the devices of which the eBPF programs may see a packet twice: those of a macvlan device are those of the device below it, too.
type twice struct {
	mu    sync.Mutex
	known bool
	is    map[uint32]bool
	blind bool // nobody hears of changes
	heard int  // how many changes
}

// forget has the devices be listed anew: some may have changed.
func (t *twice) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
	t.heard++
}

// never has the devices be listed anew each time from now on.
func (t *twice) never() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.blind = false, true
}

// passesOnce reports whether the eBPF programs see each packet of a device once.
func (d *Diverter) passesOnce(index uint32) bool {
	t := &d.twice
	t.mu.Lock()
	known, is, heard := t.known, t.is, t.heard
	t.mu.Unlock()
	if known {
		return !is[index]
	}
	links, err := retry.Whole(netlink.ErrDumpInterrupted, d.host.LinkList)
	if err != nil {
		return false
	}
	is = map[uint32]bool{}
	for _, l := range links {
		switch l.Type() {
		case "macvlan", "macvtap", "ipvlan", "ipvtap":
			a := l.Attrs()
			is[uint32(a.Index)], is[uint32(a.ParentIndex)] = true, true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.blind && heard == t.heard { // otherwise the list may be of before a change
		t.known, t.is = true, is
	}
	return !is[index]
}
