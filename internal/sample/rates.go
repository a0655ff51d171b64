// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"time"

	"smcr/stats"
)

// Rates are what a stack does in each second.
type Rates struct {
	stats.Rate

	Fallbacks       float64  // connections that became plain TCP
	HandshakeErrors float64  // handshakes that left no connection
	Retransmits     *float64 // packets sent again; nil: not counted
}

// Between returns the rates of a stack between two samples. ok is false if they cannot be
// known: there is no earlier sample, no time has passed, or another process has taken the
// place of the stack since.
func Between(before, now *Stack, elapsed time.Duration) (r Rates, ok bool) {
	if before == nil || elapsed <= 0 || before.Info.PID != now.Info.PID {
		return Rates{}, false
	}
	per := func(n uint64) float64 { return float64(n) / elapsed.Seconds() }
	d := now.Stats.Sub(before.Stats)
	f := now.Fallbacks.Sub(before.Fallbacks)
	r = Rates{
		Rate:            d.SMCR.Rate(elapsed),
		Fallbacks:       per(f.ClientTotal + f.ServerTotal),
		HandshakeErrors: per(d.ClientHandshakeErrors + d.ServerHandshakeErrors),
	}
	if old, counted := before.Retransmits(); counted {
		if n, counted := now.Retransmits(); counted {
			r.Retransmits = new(per(Since(old, n)))
		}
	}
	return r, true
}

// Since returns by how much a counter has grown. A counter that is smaller than before was set
// to zero meanwhile, for example because its device was opened again: it returns all of it.
func Since(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
