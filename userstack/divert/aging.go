// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"time"

	"github.com/cilium/ebpf"
)

// A connection that was announced, and of which nothing is held, is remembered while it can still come into being: the answer may
// be slow, and must not reach a program that knows nothing of SMC. So it is not forgotten by its age alone before the kernel gives
// up, but as soon as its socket has: who closes it, or whose peer resets it, does not keep the place.

const (
	// youngMost is the age at which an announced connection is looked at, and waitingMost how many of that age there may be
	// before that: one look is through all sockets of the host.
	youngMost   = 3 * time.Second
	waitingMost = 64
)

// waiting is a connection that was announced, and of which nothing was held.
type waiting struct {
	key  bpfTuple
	flow bpfFlow
}

// has reports whether the stack has a connection.
func (d *Diverter) has(t Tuple) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flows[t] != nil
}

// expire removes connections that were announced and never came into being, and users without connections.
func (d *Diverter) expire() {
	if err := d.setAccounts(); err != nil {
		d.cfg.Log.Warn("the connections of some users are charged to nobody else", "err", err)
	}
	now := monotonic()
	var old, some []waiting
	if err := each(d.bpf.Flows, func(key *bpfTuple, k *bpfFlow) {
		switch age := now - time.Duration(k.Id>>1); {
		case k.Held != 0 && age > handshakeMost && !d.has(tupleOf(*key)):
			// The packet that was held was lost, and no other one came.
			old = append(old, waiting{*key, *k})
		case k.Held != 0:
		case age > handshakeMost:
			old = append(old, waiting{*key, *k})
		case age > youngMost:
			some = append(some, waiting{*key, *k})
		}
	}); err != nil {
		d.cfg.Log.Debug("cannot list the connections that are announced", "err", err)
	}
	if len(some) >= waitingMost {
		// After the table: a socket does not begin the same handshake again.
		if there, err := d.sockets.handshakes(); err == nil {
			for _, w := range some {
				if !there[w.flow.Cookie] {
					old = append(old, w)
				}
			}
		} else {
			d.cfg.Log.Debug("cannot list the sockets of handshakes", "err", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var keys []bpfTuple
	var were []bpfFlow
	for _, w := range old {
		if d.flows[tupleOf(w.key)] == nil && d.guard(w) {
			keys, were = append(keys, w.key), append(were, w.flow)
		}
	}
	d.withdraw(keys, were)
	d.forgetUsers()
	d.forgetSilents(time.Now())
}

// guard keeps the programs from beginning a connection of a tuple until withdraw, by a way that leads nowhere. It reports whether what
// waits there is still what it was. mu is held.
func (d *Diverter) guard(w waiting) bool {
	t := tupleOf(w.key)
	nowhere := bpfWay{State: waySplit, Isn: w.flow.Isn, Via: w.flow.Via}
	made := put(d.bpf.Ways, w.key, &nowhere, ebpf.UpdateNoExist) == nil
	var is bpfWay
	if !made && look(d.bpf.Ways, w.key, &is) == nil && is.State == wayProbed {
		if put(d.bpf.Ways, w.key, &nowhere, ebpf.UpdateExist) != nil {
			return false // the program has gone on
		}
		made = true
	}
	var k bpfFlow
	if look(d.bpf.Flows, w.key, &k) == nil && k.Id == w.flow.Id && k.Held == w.flow.Held {
		d.gone[0][t] = &Flow{Tuple: t, d: d, via: k.Via}
		return true
	}
	if made {
		_ = drop(d.bpf.Ways, w.key)
	}
	return false
}
