// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
)

// ErrNoGID is matched by the errors of a device without a usable GID.
var ErrNoGID = fmt.Errorf("no usable GID: %w", os.ErrNotExist)

// A Choice says which device and GID to use.
type Choice struct {
	// Device is a device, such as "soft-eth0", or its netdev. The empty string
	// chooses the device that has Local, or the first one with an address.
	Device string
	// GID is an index into the GID table of port 1. A negative one chooses the
	// RoCEv2 GID of Local, or the first one of Local's address family.
	GID int
	// Local is the address at which the peer is talked to over TCP.
	Local netip.Addr
	Log   *slog.Logger
}

// A Source is an open device and the entry of its GID table to send from.
type Source struct {
	rdmaverbs.Device
	Index int
	GID   rdmaverbs.GIDEntry

	drv *driver
}

// Close closes the device.
func (s *Source) Close() error {
	err := s.Device.Close()
	s.drv.close()
	return err
}

// Hold has the caller run the packet I/O of the device while it waits, by the
// Next of a queue or by Await, until Release. Nobody else does so meanwhile: in
// between it must not wait for anything but these.
func (s *Source) Hold() { s.drv.run.Lock() }

// Release ends what Hold began.
func (s *Source) Release() { s.drv.run.Unlock() }

// Await waits until seen returns true. The device is held.
func (s *Source) Await(ctx context.Context, patience time.Duration, seen func() bool) error {
	return s.drv.await(ctx, patience, seen)
}

// Open opens the chosen device. The caller closes it. Needs CAP_NET_RAW.
func (c Choice) Open(ctx context.Context) (*Source, error) {
	name := c.Device
	if name == "" {
		var err error
		if name, err = pick(c.Local); err != nil {
			return nil, err
		}
	}
	name = softroce.DeviceName(name)
	drv, err := newDriver()
	if err != nil {
		return nil, err
	}
	d, err := softroce.New(softroce.WithLogger(c.Log), softroce.WithPoller(drv), softroce.WithWriteOnly()).Open(ctx, name)
	if errors.Is(err, rdmaverbs.ErrNoDevice) {
		err = fmt.Errorf("%w (%w): see 'smcr verbs devices'", err, os.ErrNotExist)
	}
	if err != nil {
		drv.close()
		return nil, err
	}
	s, err := c.source(d)
	if err != nil {
		d.Close()
		drv.close()
		return nil, fmt.Errorf("device %s: %w", name, err)
	}
	s.drv = drv
	return s, nil
}

func (c Choice) source(d rdmaverbs.Device) (*Source, error) {
	gids, err := d.GIDs(1)
	if err != nil {
		return nil, err
	}
	i := c.GID
	if i < 0 {
		i = bestGID(gids, c.Local)
	}
	if i < 0 {
		return nil, fmt.Errorf("%w: give the netdev an IP address; if it has one, another program uses UDP port 4791: stop 'smcr serve' or remove the kernel's rxe device", ErrNoGID)
	}
	if i >= len(gids) {
		return nil, fmt.Errorf("no GID index %d: the table has %d entries, see 'smcr verbs gids': %w", i, len(gids), os.ErrNotExist)
	}
	return &Source{Device: d, Index: i, GID: gids[i]}, nil
}

// bestGID returns the index of the RoCEv2 entry of an address, else of the first
// one of its family, IPv4 before IPv6 and link-local ones last; -1 for none.
func bestGID(gids []rdmaverbs.GIDEntry, local netip.Addr) int {
	local = local.Unmap().WithZone("")
	best, points := -1, 0
	for i, g := range gids {
		if g.Type != rdmaverbs.RoCEv2 {
			continue
		}
		a, p := g.GID.Addr(), 1
		switch {
		case a == local:
			p = 8
		case a.Is4() && local.Is4(), a.Is6() && local.Is6() && a.IsLinkLocalUnicast() == local.IsLinkLocalUnicast():
			p = 4
		case a.Is4():
			p = 3
		case !a.IsLinkLocalUnicast():
			p = 2
		}
		if p > points {
			best, points = i, p
		}
	}
	return best
}

// pick returns the netdev with an address, else the first one with any that is not
// the loopback device's.
func pick(local netip.Addr) (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list network devices: %w", err)
	}
	local = local.Unmap().WithZone("")
	first := ""
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue
		}
		has := func(ok func(netip.Addr) bool) bool {
			return slices.ContainsFunc(addrs, func(a net.Addr) bool {
				p, err := netip.ParsePrefix(a.String())
				return err == nil && ok(p.Addr())
			})
		}
		if local.IsValid() && has(func(a netip.Addr) bool { return a == local }) {
			return i.Name, nil
		}
		if first == "" && i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) == 6 && has(netip.Addr.IsValid) {
			first = i.Name
		}
	}
	if first == "" {
		return "", fmt.Errorf("no network device with an address: choose one with --device: %w", os.ErrNotExist)
	}
	return first, nil
}
