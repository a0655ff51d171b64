// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// worthBed is a worth with a clock of its own and one destination.
type worthBed struct {
	t   *testing.T
	w   worth
	now time.Time
	to  netip.AddrPort
}

func newWorthBed(t *testing.T) *worthBed {
	return &worthBed{t: t, now: time.Unix(1000, 0), to: netip.MustParseAddrPort("192.0.2.1:80")}
}

// row has n connections end as o, each after gap.
func (b *worthBed) row(n int, o outcome, gap time.Duration) {
	for range n {
		b.now = b.now.Add(gap)
		b.w.learn(b.now, b.to, o)
	}
}

func (b *worthBed) want(what string, c choice) {
	b.t.Helper()
	if got := b.w.ask(b.now, b.to); got != c {
		b.t.Errorf("%s: %+v, want %+v", what, got, c)
	}
}

// TestWorth has a row for each line of the table at worth.
func TestWorth(t *testing.T) {
	testkind.System(t)
	smc := choice{}
	try := choice{try: true}
	tcpNoPeer := choice{tcp: true, because: noPeer}
	tcpShort := choice{tcp: true, because: short}
	const gap = time.Millisecond
	for name, f := range map[string]func(b *worthBed){
		"nothing known": func(b *worthBed) { b.want("first", smc) },
		"no peer": func(b *worthBed) {
			b.row(noPeerRow-1, noPeer, gap)
			b.want("before the last", smc)
			b.row(1, noPeer, gap)
			b.want("after the last", tcpNoPeer)
			b.to = netip.MustParseAddrPort("192.0.2.1:81")
			b.want("another port", smc)
		},
		"short": func(b *worthBed) {
			b.row(shortRow-1, short, gap)
			b.want("before the last", smc)
			b.row(1, short, gap)
			b.want("after the last", tcpShort)
		},
		"a gap": func(b *worthBed) {
			b.row(shortRow-1, short, gap)
			b.row(shortRow-1, short, rowGap+1)
			b.want("rows with gaps", smc)
		},
		"mixed": func(b *worthBed) {
			for range 2 * shortRow {
				b.row(noPeerRow-1, noPeer, gap)
				b.row(1, short, gap)
			}
			b.want("no row", smc)
			b.row(shortRow-2, short, gap)
			b.row(1, useful, gap)
			b.row(shortRow-1, short, gap)
			b.want("a useful one between", smc)
		},
		"tries of no peer": func(b *worthBed) {
			b.row(noPeerRow, noPeer, gap)
			for range 5 {
				b.now = b.now.Add(probeFirst - 1)
				b.want("before its time", tcpNoPeer)
				b.now = b.now.Add(1)
				b.want("in time", try)
				b.want("beside it", tcpNoPeer)
				b.row(1, noPeer, gap)
				b.want("after it", tcpNoPeer)
			}
		},
		"tries of short": func(b *worthBed) {
			b.row(shortRow, short, gap)
			for pause := probeFirst; pause < 4*probeLast; pause *= 2 {
				b.now = b.now.Add(min(pause, probeLast) - 1)
				b.want("before its time", tcpShort)
				b.now = b.now.Add(1)
				b.want("in time", try)
				b.row(1, short, gap)
			}
		},
		"begun before": func(b *worthBed) {
			b.row(shortRow, short, gap)
			b.row(3*shortRow, short, gap)
			b.now = b.now.Add(probeFirst)
			b.want("they are no tries", try)
		},
		"useful": func(b *worthBed) {
			b.row(shortRow, short, gap)
			b.row(1, useful, gap)
			b.want("after it", smc)
			if b.w.any() {
				t.Error("a destination is counted that is forgotten")
			}
		},
		"a try without an outcome": func(b *worthBed) {
			b.row(shortRow, short, gap)
			b.now = b.now.Add(probeFirst)
			b.want("first", try)
			b.now = b.now.Add(probeTime)
			b.want("second", try)
		},
		"another kind": func(b *worthBed) {
			b.row(shortRow, short, gap)
			b.now = b.now.Add(probeFirst)
			b.want("in time", try)
			b.row(1, noPeer, gap)
			b.want("after it", tcpNoPeer)
		},
		"forgotten": func(b *worthBed) {
			b.row(shortRow, short, gap)
			b.now = b.now.Add(forgetTime + 1)
			b.want("after a pause", smc)
			b.row(shortRow-1, short, gap)
			b.want("nothing is left", smc)
		},
	} {
		t.Run(name, func(t *testing.T) { b := newWorthBed(t); f(b) })
	}
}

// TestEnding: a connection is short by what it took to make it.
func TestEnding(t *testing.T) {
	testkind.System(t)
	const ms = time.Millisecond
	for _, test := range []struct {
		made, open time.Duration
		carried    uint64
		want       outcome
	}{
		{3 * ms, 999 * ms, littleBytes - 1, short},
		{3 * ms, 1000 * ms, 0, useful},
		{3 * ms, 19 * ms, littleBytes, short},
		{3 * ms, 20 * ms, littleBytes, useful},
		{3 * ms, 5 * ms, shortBytes, useful},
		{200 * ms, 500 * ms, shortBytes - 1, short}, // on a busy machine
		{200 * ms, 600 * ms, shortBytes - 1, useful},
		{2 * time.Second, 1100 * ms, 1000, useful},
	} {
		if got := ending(test.made, test.open, test.carried); got != test.want {
			t.Errorf("made in %v, open for %v, %d bytes: %v, want %v", test.made, test.open, test.carried, got, test.want)
		}
	}
}

// TestWorthBounded: addresses that the program tries one after the other take no
// memory without bound.
func TestWorthBounded(t *testing.T) {
	testkind.System(t)
	b := newWorthBed(t)
	to := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
	}
	for i := range 3 * maxWorth {
		b.w.learn(b.now, to(i), short)
	}
	if n := len(b.w.dests); n != maxWorth {
		t.Errorf("%d destinations, want %d", n, maxWorth)
	}
	b.now = b.now.Add(rowGap + 1)
	b.row(shortRow, short, 0)
	if !b.w.ask(b.now, b.to).tcp {
		t.Error("no room for a new one after a while")
	}
}
