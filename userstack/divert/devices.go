// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
	links, err := d.host.LinkList() // not by the subscription: other stacks would receive its question, and be warned
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
