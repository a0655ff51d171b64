// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLacksDead: if a stack that was killed and cannot end has the port of RoCE version 2, info names
// its process. Once it has ended, or if something else is the reason, info says that.
func TestLacksDead(t *testing.T) {
	taken := fmt.Errorf("another program has it: %w", unix.EADDRINUSE)
	for _, tt := range []struct {
		err  error
		dead func() []int
		want string
	}{
		{taken, func() []int { return []int{123} }, "process 123, the stack before this one"},
		{taken, func() []int { return []int{123, 45} }, "processes 123 45, the stack before this one"},
		{taken, func() []int { return nil }, "another program has it"},
		{taken, nil, "another program has it"},
		{errors.New("no such netdev"), func() []int { return []int{123} }, "no such netdev"},
	} {
		l := &lacks{v2: func() error { return tt.err }, dead: tt.dead}
		if v2, all := l.now(); v2 || len(all) != 1 || !strings.Contains(all[0], tt.want) {
			t.Errorf("%v: %v, %q; want %q", tt.err, v2, all, tt.want)
		}
	}
}

// TestLacksWire: the reason for which connections are not taken is one of the problems.
func TestLacksWire(t *testing.T) {
	l := &lacks{v2: func() error { return nil }}
	if _, all := l.now(); l.noWire() != "" || len(all) != 0 {
		t.Errorf("%q, %q", l.noWire(), all)
	}
	l.wire = unix.EPERM
	if _, all := l.now(); !strings.Contains(l.noWire(), "not permitted") || !slices.Equal(all, []string{l.noWire()}) {
		t.Errorf("%q, %q", l.noWire(), all)
	}
}
