// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/quota"
	"smcr/smc"
)

// A connection of a server is undecided from SYN-ACK until it is known whether it uses SMC-R. Whoever connects decides how long that
// takes, so the programs bound how many there are: of all, of a user, of an origin, and in the queue of a listening socket
// (bpf/undecided.h). What is beyond is not announced.
//
//	it begins    | the program counts it, when it announces
//	it ends      | who removes what was not held: the program, or expire
//	             | for what was held, the Flow: with Split, or when it is over
//
// What is said of an origin is written by user space: the hosts that are known (SetKnown), and who says nothing (Flow.Silent).

// undecidedMost is how many there may be: no more than a stack has rendezvous under way.
const undecidedMost = 2048

// noSlot is NO_SLOT of bpf/maps.h.
const noSlot = ^uint32(0)

// undecided is map undecided in the memory of this process: a value is changed by adding to it, as in the programs.
type undecided struct{ b []byte }

// openUndecided maps it for as long as a Diverter is used: flows may end after it was closed.
func openUndecided(d *Diverter, m *ebpf.Map) (undecided, error) {
	b, err := unix.Mmap(m.FD(), 0, int(m.MaxEntries())*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return undecided{}, fmt.Errorf("divert: the count of undecided connections: %w", os.NewSyscallError("mmap", err))
	}
	runtime.AddCleanup(d, func(b []byte) { _ = unix.Munmap(b) }, b)
	return undecided{b}, nil
}

func (u *undecided) at(slot uint32) *int64 { return (*int64)(unsafe.Pointer(&u.b[8*int(slot)])) }

// all returns how many there are.
func (u *undecided) all() int64 { return atomic.LoadInt64(u.at(0)) }

// leave takes one off that was counted in these slots.
func (u *undecided) leave(slots *[6]uint32) { u.weigh(slots, -1) }

// weigh is that of undecided.h.
func (u *undecided) weigh(slots *[6]uint32, n int64) {
	atomic.AddInt64(u.at(0), n)
	for _, s := range slots {
		if s != noSlot {
			atomic.AddInt64(u.at(s), n)
		}
	}
}

// undecidedSeed returns the seed of the hash that says where something is counted.
func undecidedSeed() uint64 { return rand.Uint64() }

// decided has a Flow not be counted as undecided any more.
func (f *Flow) decided() {
	if f.Role == smc.Server && !f.isDecided.Swap(true) {
		f.d.undecided.leave(&f.slots)
	}
}

// Silent notes that the peer of a server's connection has let the time pass in which it should have spoken CLC. The connections of an
// origin of which too many do so are not announced for a time.
func (f *Flow) Silent() {
	if f.Role != smc.Server {
		return
	}
	d, now := f.d, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	peer := f.Tuple.Remote.Addr()
	pause := d.silents.Add(now, f.from, peer)
	if pause == 0 {
		return
	}
	if err := d.bpf.Mutes.Put(f.from, uint64(monotonic()+pause)); err != nil {
		d.cfg.Log.Warn("connections of a host that says nothing are announced in vain", "remote", peer, "err", err)
		return
	}
	d.cfg.Log.Warn("too many connections from a host, or its network, have said nothing: the next ones are TCP for a time", "remote", peer, "time", pause)
}

// Spoke notes that a connection uses SMC-R.
func (f *Flow) Spoke() {
	if f.Role != smc.Server {
		return
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.silents.Spoke(f.from)
}

// forgetSilents forgets the origins of which nothing is to be remembered (quota.Silents). mu is held.
func (d *Diverter) forgetSilents(now time.Time) {
	d.silents.Forget(now, func(from bpfOrigin) { _ = ignored(d.bpf.Mutes.Delete(from), ebpf.ErrKeyNotExist) })
}

// Mutes returns the origins to which nothing is announced.
func (d *Diverter) Mutes() []quota.Mute {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(d.silents.Mutes(time.Now()))
}

// A Known is a host with which there was a connection over SMC-R, as it is counted (quota.Origin.HostOf), and from where it comes.
type Known struct {
	Host   netip.Addr
	Origin quota.Origin
}

// SetKnown says which hosts are known: a part of the undecided connections is theirs. It replaces what was said before. There must not be
// more than the table takes, which is 1024.
func (d *Diverter) SetKnown(all []Known) error {
	next := make(map[netip.Addr]bpfMet, len(all))
	for _, k := range all {
		mac, _ := k.Origin.Neighbour() // 0 behind a router
		var m bpfMet
		copy(m.Mac[:], mac[:])
		next[k.Host] = m
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for host := range d.known {
		if _, stays := next[host]; !stays {
			errs = append(errs, ignored(d.bpf.Hosts.Delete(host.As16()), ebpf.ErrKeyNotExist))
			delete(d.known, host)
		}
	}
	for host, m := range next {
		if has, ok := d.known[host]; ok && has == m {
			continue
		}
		if err := d.bpf.Hosts.Put(host.As16(), m); err != nil {
			errs = append(errs, err)
			continue
		}
		d.known[host] = m
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("divert: which hosts are known: %w", err)
	}
	return nil
}
