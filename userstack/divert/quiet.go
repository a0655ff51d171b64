// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"net/netip"
	"time"

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
}

// Quiet has connections of a user to a port of a peer not announced for a time. A
// later call replaces an earlier one. The table is bounded: what was asked for longest ago may be forgotten.
func (d *Diverter) Quiet(uid uint32, peer netip.AddrPort, s Silence) error {
	key := bpfPeer{Uid: uid, Addr: peer.Addr().As16(), Port: swapped(peer.Port())}
	var err error
	if s.For == 0 {
		err = ignored(d.bpf.Quiet.Delete(key), ebpf.ErrKeyNotExist)
	} else {
		err = d.bpf.Quiet.Put(key, bpfSilence{Until: uint64(monotonic() + s.For), Again: uint64(s.Again), Why: uint32(s.Why)})
	}
	if err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	return nil
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
	var k bpfPeer
	var s bpfSilence
	now := monotonic()
	each := d.bpf.Quiet.Iterate()
	for each.Next(&k, &s) {
		left := max(time.Duration(s.Until)-now, 0)
		if left == 0 && s.Again == 0 {
			continue
		}
		peer := netip.AddrPortFrom(netip.AddrFrom16(k.Addr).Unmap(), swapped(k.Port))
		all = append(all, Silenced{k.Uid, peer, Silence{left, time.Duration(s.Again), smc.Diagnosis(s.Why)}})
	}
	if err := ignored(each.Err(), ebpf.ErrIterationAborted); err != nil { // it changes meanwhile
		return all, fmt.Errorf("divert: list the peers to which nothing is announced: %w", err)
	}
	return all, nil
}
