// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"smcr/quota"
)

// Who has how many connections is counted twice: the programs count what they announce and forget (maps users and total), and user
// space what it removes (map removed, and stateRemoved). The difference is what there is.

// remove removes connections from the table of the programs; flows says whose they are. mu is held: the count has one writer.
func (d *Diverter) remove(keys []bpfTuple, flows []bpfFlow) {
	gone := map[uint32]bpfCount{}
	removeAll(d.bpf.Flows, keys, func(i int) {
		if k := &flows[i]; k.Server != 0 { // of which there is no Flow
			d.undecided.leave(&k.Slots)
		}
		add(gone, &flows[i], 1)
	})
	d.recount(gone)
}

// add adds connections to what is counted for users.
func add(to map[uint32]bpfCount, k *bpfFlow, n int) {
	c := to[k.Account]
	c.All += uint64(n)
	if k.Held == 0 {
		c.Waits[min(k.Server, 1)] += uint64(n)
	}
	to[k.Account] = c
}

// recount counts what user space has removed, or, if that is negative, added. mu is held.
func (d *Diverter) recount(more map[uint32]bpfCount) {
	for uid, n := range more {
		var gone bpfCount
		_ = d.bpf.Removed.Lookup(uid, &gone)
		gone.All += n.All
		for i := range n.Waits {
			gone.Waits[i] += n.Waits[i]
		}
		d.removed += n.All
		if err := errors.Join(d.bpf.Removed.Put(uid, gone), d.bpf.States.Put(stateRemoved, d.removed)); err != nil {
			d.cfg.Log.Error("cannot count the connections of a user", "user", uid, "err", err)
		}
	}
}

// forgetUsers forgets those who have no connections: who can become many users must not fill the table. mu is held.
func (d *Diverter) forgetUsers() {
	type both struct{ n, gone bpfCount }
	all := map[uint32]both{}
	err := each(d.bpf.Users, func(uid *uint32, c *bpfCount) { all[*uid] = both{n: *c} })
	err = errors.Join(err, each(d.bpf.Removed, func(uid *uint32, c *bpfCount) {
		is := all[*uid]
		is.gone = *c
		all[*uid] = is
	}))
	if err != nil { // a user may be missing in one of both
		d.cfg.Log.Debug("cannot list the users that have connections", "err", err)
		return
	}
	for uid, is := range all {
		// A program may write it right now. Then the count is one too low, until it is forgotten again.
		if int64(is.n.All-is.gone.All) <= 0 {
			_ = d.bpf.Users.Delete(uid)
			_ = d.bpf.Removed.Delete(uid)
		}
	}
}

// setAccounts has what some users have charged to others, if there are more than before. One goroutine calls it at a time.
func (d *Diverter) setAccounts() error {
	if d.cfg.Subordinates == nil {
		return nil
	}
	all := d.cfg.Subordinates()
	if len(all) == d.accounts {
		return nil
	}
	d.accounts = len(all)
	for _, ids := range all {
		for k := range prefixes(ids) {
			if err := d.bpf.Accounts.Put(k, ids.Owner); err != nil {
				return fmt.Errorf("the owners of users: %w", err)
			}
		}
	}
	return nil
}

// account returns the user who answers for another one, as the programs have it.
func (d *Diverter) account(uid uint32) (uint32, error) {
	var owner uint32
	err := d.bpf.Accounts.Lookup(bpfIds{Bits: 32, Uid: swapped32(uid)}, &owner)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return uid, nil
	}
	return owner, err
}

// prefixes returns the keys of map accounts that stand for a range of users.
func prefixes(ids quota.IDs) map[bpfIds]bool {
	all := map[bpfIds]bool{}
	for at, end := uint64(ids.First), uint64(ids.Last)+1; at < end; {
		free := min(bits.TrailingZeros64(at|1<<32), bits.Len64(end-at)-1)
		all[bpfIds{Bits: uint32(32 - free), Uid: swapped32(uint32(at))}] = true
		at += 1 << free
	}
	return all
}
