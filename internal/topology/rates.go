// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"time"

	"smcr/nl"
)

// minInterval is the shortest time between two listings from which rates are computed.
// Over a shorter one, a single transfer would look like a flood.
const minInterval = 50 * time.Millisecond

// Counters are the byte counters of a stack at one time: with those of an earlier time,
// they give rates.
type Counters struct {
	time  time.Time
	pid   uint32
	total volume
	conns map[uint64]volume // by connKey
}

// A volume is numbers of bytes.
type volume struct{ sent, received uint64 }

func (v *volume) add(w volume) {
	v.sent += w.sent
	v.received += w.received
}

// Counters returns the counters of a listing.
func (l *Listing) Counters() Counters {
	s := &l.Stats
	c := Counters{
		time: l.Time, pid: l.Info.PID,
		total: volume{s.SMCR.TXBytes + s.SMCD.TXBytes, s.SMCR.RXBytes + s.SMCD.RXBytes},
		conns: make(map[uint64]volume),
	}
	for i := range l.Conns {
		if key := connKey(&l.Conns[i]); key != 0 && counted(&l.Conns[i]) {
			c.conns[key] = volume{l.Conns[i].TXBytes, l.Conns[i].RXBytes}
		}
	}
	return c
}

// connKey returns a number that a connection has for itself as long as it lives, or 0.
func connKey(c *nl.Connection) uint64 {
	if c.Cookie != 0 {
		return c.Cookie
	}
	return c.Inode
}

// counted reports whether a stack in user space counts the bytes of a connection. The
// kernel counts those of no connection.
func counted(c *nl.Connection) bool { return c.Mode == nl.ModeSMCR && c.Link != nil }

// A meter turns the bytes since an earlier time into rates.
type meter struct {
	before *Counters
	time   time.Duration
	now    Counters
}

// newMeter returns a meter, or nil if the two times do not belong together: there is no
// earlier one, the stack was restarted between them, or they are too close.
func newMeter(before *Counters, now Counters) *meter {
	if before == nil {
		return nil
	}
	m := &meter{before: before, now: now, time: now.time.Sub(before.time)}
	if m.time < minInterval || before.pid != now.pid || now.total.sent < before.total.sent || now.total.received < before.total.received {
		return nil
	}
	return m
}

// rates returns the rates of a volume.
func (m *meter) rates(v volume) *Rates {
	perSecond := func(n uint64) uint64 { return uint64(float64(n) / m.time.Seconds()) }
	return &Rates{perSecond(v.sent), perSecond(v.received)}
}

// total returns the rates of the stack, or nil.
func (m *meter) total() *Rates {
	if m == nil {
		return nil
	}
	return m.rates(volume{m.now.total.sent - m.before.total.sent, m.now.total.received - m.before.total.received})
}

// ConnRates returns a function that tells what a connection of a listing sent and received per
// second since an earlier listing of the same stack. It returns nil where that is not known: for
// connections whose bytes nobody counts, and without an earlier listing that fits.
func ConnRates(l *Listing, before *Counters) func(*nl.Connection) *Rates {
	m := newMeter(before, l.Counters())
	return func(c *nl.Connection) *Rates {
		if m == nil || !counted(c) {
			return nil
		}
		return m.rates(m.moved(c))
	}
}

// moved returns what a connection has moved since the earlier time. All bytes of a
// connection that is new have moved since then.
func (m *meter) moved(c *nl.Connection) volume {
	now, old := volume{c.TXBytes, c.RXBytes}, m.before.conns[connKey(c)]
	if now.sent < old.sent || now.received < old.received {
		return now // another connection with the same number
	}
	return volume{now.sent - old.sent, now.received - old.received}
}
