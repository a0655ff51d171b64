// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"smcr/smc"
)

// A Silence says how long connections to a peer are not announced.
type Silence struct {
	// For is how long. With 0, they are announced again.
	For time.Duration
	// Again, if not 0, has the first connection after that announced, and the others not, for so long or until
	// Quiet is called again.
	Again time.Duration
	// Why is the reason with which the connections are counted.
	Why smc.Diagnosis
	// PeerWhy is the reason of the peer in its DECLINE, if Why is smc.DiagPeerDeclined, or 0. Listings have it.
	PeerWhy smc.Diagnosis
}

// Quiet has connections of a user to a port of a peer not announced for a time. A
// later call replaces an earlier one. A user has userQuiet of them at most, and each next one takes the place of another one
// of the same user that ends early.
func (d *Diverter) Quiet(uid uint32, peer netip.AddrPort, s Silence) error {
	k := bpfKnown{
		Peer: bpfPeer{Uid: uid, Addr: peer.Addr().As16(), Port: swapped(peer.Port())},
		Is:   bpfSilence{Until: uint64(monotonic() + s.For), Again: uint64(s.Again), Why: uint32(s.Why), Code: uint32(s.PeerWhy)},
	}
	d.quieting.Lock()
	defer d.quieting.Unlock()
	at, there, err := d.quietSeat(k.Peer)
	switch {
	case err != nil:
	case s.For > 0:
		err = d.bpf.Quiet.Put(at, k)
	case there:
		err = ignored(d.bpf.Quiet.Delete(at), ebpf.ErrKeyNotExist)
	}
	if err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	return nil
}

// quietSeat returns where it is kept that nothing is announced to a peer, or where it is to be kept.
func (d *Diverter) quietSeat(p bpfPeer) (at bpfSeat, there bool, err error) {
	account, err := d.account(p.Uid)
	if err != nil {
		return at, false, err
	}
	at = bpfSeat{Account: account, At: firstSeat(p)}
	soonest, first := uint64(math.MaxUint64), at.At
	for i := range uint32(seats) {
		var is bpfKnown
		s := bpfSeat{Account: account, At: first + i}
		err := d.bpf.Quiet.Lookup(s, &is)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return at, false, err
		}
		if err == nil && is.Peer == p {
			return s, true, nil
		}
		if end := is.Is.Until + is.Is.Again; end < soonest { // 0 if nobody has it
			soonest, at = end, s
		}
	}
	return at, false, nil
}

// firstSeat is first_seat of bpf/peers.h.
func firstSeat(p bpfPeer) uint32 {
	words := (*[unsafe.Sizeof(p) / 4]uint32)(unsafe.Pointer(&p)) // as the programs read them
	h := uint64(0)
	for _, w := range words {
		h = (h ^ uint64(w)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return uint32(h) % (userQuiet / seats) * seats
}

// A Silenced is a peer to which connections of a user are not announced.
type Silenced struct {
	UID  uint32
	Peer netip.AddrPort
	// Silence has the time that is left. With 0, the next connection is announced.
	Silence
}

// Silences returns all of them. One that is over, after which nothing else follows, is none.
func (d *Diverter) Silences() (all []Silenced, err error) {
	now := monotonic()
	err = each(d.bpf.Quiet, func(_ *bpfSeat, k *bpfKnown) {
		left := max(time.Duration(k.Is.Until)-now, 0)
		if left == 0 && k.Is.Again == 0 {
			return
		}
		peer := netip.AddrPortFrom(netip.AddrFrom16(k.Peer.Addr).Unmap(), swapped(k.Peer.Port))
		all = append(all, Silenced{k.Peer.Uid, peer, Silence{left, time.Duration(k.Is.Again), smc.Diagnosis(k.Is.Why), smc.Diagnosis(k.Is.Code)}})
	})
	return all, err
}
