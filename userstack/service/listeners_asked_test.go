// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	"smcr/userstack/broker"
)

// TestAskedAgain: a listener that was taken for one of a process without launcher announces SMC
// again when its launchers ask about connections, and each time they must ask more often.
func TestAskedAgain(t *testing.T) {
	l, other := new(broker.Launcher), new(broker.Launcher)
	x := &markedSocket{launchers: map[*broker.Launcher]struct{}{l: {}}, foreign: true, port: 80, asks: 2}
	ls := &listeners{kick: make(chan struct{}, 1), stray: 1, open: map[*broker.Launcher]map[uint64]*markedSocket{l: {1: x}, other: {}}}
	ls.asked(other, 80)
	ls.asked(l, 81)
	ls.asked(l, 80)
	if !x.orphan() || ls.stray != 1 {
		t.Fatalf("announces again after one connection")
	}
	ls.asked(l, 80)
	if x.orphan() || ls.stray != 0 || len(ls.kick) != 1 {
		t.Errorf("orphan %v, %d stray, %d wake-ups", x.orphan(), ls.stray, len(ls.kick))
	}
	ls.asked(l, 80)
	if ls.stray != 0 {
		t.Errorf("%d stray", ls.stray)
	}
}
