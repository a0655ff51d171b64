// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"smcr/smc"
)

// A Place is a part of the network: peers with some addresses, by a device. Of the places by a device that have a peer, the
// one with the longest prefix counts. What is not possible by any device is possible by none.
type Place struct {
	// Dev is the index of the device, or 0 for all.
	Dev int
	// Prefix has the addresses. The zero value stands for all.
	Prefix netip.Prefix
	// Why is the reason why SMC-R is not possible there, or 0 if it may be.
	Why smc.Diagnosis
	// Near says that who has these addresses is a neighbour, and not behind a router.
	Near bool
}

// devBits and v4Bits are the bits of a key before its address, and those before an IPv4 address in that.
const (
	devBits = 32
	v4Bits  = 96
)

// key returns the place as the eBPF programs have it.
func (p *Place) key() bpfPlace {
	k := bpfPlace{Bits: devBits, Dev: uint32(p.Dev)}
	if !p.Prefix.IsValid() {
		return k
	}
	k.Bits += uint32(p.Prefix.Bits())
	if p.Prefix.Addr().Is4() {
		k.Bits += v4Bits
	}
	k.Addr = p.Prefix.Masked().Addr().As16()
	return k
}

// neighbourPlace is the bit NEIGHBOUR of a value of map places.
const neighbourPlace = 1 << 31

func (p *Place) value() uint32 {
	v := uint32(p.Why)
	if p.Near {
		v |= neighbourPlace
	}
	return v
}

// SetPlaces says where SMC-R is not possible: what goes there is not announced. It replaces what was said before, and says
// nothing of other devices. There must not be more than the table takes, which is 16384.
func (d *Diverter) SetPlaces(all []Place) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := make(map[bpfPlace]uint32, len(all))
	for i := range all {
		next[all[i].key()] = all[i].value()
	}
	var errs []error
	// First what is gone, so that there is room. Meanwhile, a wider place counts.
	for k := range d.places {
		if _, stays := next[k]; !stays {
			errs = append(errs, ignored(d.bpf.Places.Delete(k), ebpf.ErrKeyNotExist))
			delete(d.places, k)
		}
	}
	for k, why := range next {
		if has, ok := d.places[k]; ok && has == why {
			continue
		}
		if err := d.bpf.Places.Put(k, why); err != nil {
			errs = append(errs, err)
			continue
		}
		d.places[k] = why
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("divert: where SMC-R is possible: %w", err)
	}
	return nil
}
