// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"strings"
	"testing"
	"time"
)

// snapshot makes a snapshot of processes.
func snapshot(procs ...Proc) Snapshot {
	s := Snapshot{Procs: make(map[int]Proc)}
	for _, p := range procs {
		s.Procs[p.PID] = p
	}
	return s
}

const me = 100

// TestFindOthers compares snapshots with 10 s of one core between them.
func TestFindOthers(t *testing.T) {
	const s = time.Second
	init := Proc{PID: 1, Name: "init"}
	bench := Proc{PID: me, Parent: 1, Name: "smcrbench"}
	for _, test := range []struct {
		name          string
		before, after []Proc
		busy          time.Duration // of the machine; -1 stands for the sum of the processes
		steal         time.Duration
		share         float64
		who           string // the first of them, or ""
	}{
		{name: "nobody", before: []Proc{init, bench}, after: []Proc{init, bench}},
		{
			name:   "our own programs",
			before: []Proc{init, bench, {PID: 101, Parent: me, User: 1 * s}},
			after:  []Proc{init, {PID: me, Parent: 1, Children: 3 * s}, {PID: 101, Parent: me, User: 4 * s}, {PID: 102, Parent: 101, System: 2 * s}},
			busy:   8 * s,
		},
		{
			name:   "our own stack, whose parent has ended",
			before: []Proc{init, bench, {PID: 101, Parent: me}, {PID: 102, Parent: 101, User: 1 * s}},
			after:  []Proc{init, bench, {PID: 102, Parent: 1, User: 5 * s}},
			busy:   4 * s,
		},
		{
			name:   "another program",
			before: []Proc{init, bench, {PID: 7, Parent: 1, Name: "cc", User: 50 * s}},
			after:  []Proc{init, bench, {PID: 7, Parent: 1, Name: "cc", User: 51 * s, System: 1 * s}},
			busy:   2 * s, share: 0.2, who: "cc",
		},
		{
			name:   "a new program",
			before: []Proc{init, bench},
			after:  []Proc{init, bench, {PID: 7, Parent: 1, Name: "new", User: 1 * s}},
			busy:   1 * s, share: 0.1, who: "new",
		},
		{
			name:   "one that came and went, found with its parent",
			before: []Proc{init, bench, {PID: 7, Parent: 1, Name: "make"}},
			after:  []Proc{init, bench, {PID: 7, Parent: 1, Name: "make", Children: 3 * s}},
			busy:   3 * s, share: 0.3, who: "make",
		},
		{
			name:   "one that ended: only what it used since",
			before: []Proc{init, bench, {PID: 7, Parent: 1, Name: "make"}, {PID: 8, Parent: 7, Name: "cc", User: 100 * s}},
			after:  []Proc{init, bench, {PID: 7, Parent: 1, Name: "make", Children: 101 * s}},
			busy:   1 * s, share: 0.1, who: "make",
		},
		{
			name: "a family that ended: likewise",
			before: []Proc{init, bench, {PID: 7, Parent: 1, Name: "make"},
				{PID: 8, Parent: 7, Name: "sh", User: 1 * s}, {PID: 9, Parent: 8, Name: "cc", User: 100 * s}},
			after: []Proc{init, bench, {PID: 7, Parent: 1, Name: "make", Children: 102 * s}},
			busy:  1 * s, share: 0.1, who: "make",
		},
		{
			name:   "one that ended unseen does not hide another",
			before: []Proc{init, bench, {PID: 7, Parent: 1, Name: "cc"}, {PID: 8, Parent: 1, Name: "gone", User: 100 * s}},
			after:  []Proc{init, bench, {PID: 7, Parent: 1, Name: "cc", User: 1 * s}},
			busy:   1 * s, share: 0.1, who: "cc",
		},
		{
			name:   "another with the number of one that ended",
			before: []Proc{init, bench, {PID: 7, Parent: 1, Name: "old", User: 50 * s}},
			after:  []Proc{init, bench, {PID: 7, Parent: 1, Name: "cc", User: 2 * s}},
			busy:   2 * s, share: 0.2, who: "cc",
		},
		{
			name:   "more than the machine has: no more than was not idle",
			before: []Proc{init, bench},
			after:  []Proc{{PID: 1, Name: "init", Children: 90 * s}, bench},
			busy:   3 * s, share: 0.3, who: "init",
		},
		{
			name:   "kernel threads may work for us",
			before: []Proc{init, bench, {PID: 3, Parent: 2, Kernel: true}},
			after:  []Proc{init, bench, {PID: 3, Parent: 2, Kernel: true, System: 4 * s}},
			busy:   4 * s,
		},
		{name: "the hypervisor", before: []Proc{init, bench}, after: []Proc{init, bench}, steal: 1 * s, share: 0.1, who: "the hypervisor, for other machines"},
		{name: "what /proc hides", before: []Proc{init, bench}, after: []Proc{init, bench}, busy: 3 * s, share: 0.3, who: "processes that /proc does not show"},
		{name: "what samples get wrong", before: []Proc{init, bench}, after: []Proc{init, bench}, busy: s / 2},
	} {
		before, after := snapshot(test.before...), snapshot(test.after...)
		before.CPU = CPU{Busy: 5 * s, Idle: 1000 * s}
		after.CPU = CPU{Busy: 5*s + test.busy, Steal: test.steal, Idle: 1010*s - test.busy - test.steal}
		got := FindOthers(before, after, me)
		if math.Abs(got.Share-test.share) > 1e-9 {
			t.Errorf("%s: share %v, want %v", test.name, got.Share, test.share)
		}
		if got.Quiet() != (test.share <= OthersLimit) {
			t.Errorf("%s: quiet %t", test.name, got.Quiet())
		}
		if who := append(got.Who, Consumer{})[0].Name; who != test.who {
			t.Errorf("%s: %q, want %q", test.name, who, test.who)
		}
	}
	if got := FindOthers(snapshot(), snapshot(), me); got.Share != 0 {
		t.Errorf("no time passed: %+v", got)
	}
}

// TestBusyError: the message says which program ran, and what to do.
func TestBusyError(t *testing.T) {
	err := &BusyError{What: "redis over TCP", Tries: 4, Others: Others{Share: 0.25, Who: []Consumer{{"cc1", 4711, 0.2}, {"the hypervisor, for other machines", 0, 0.05}}}}
	for _, want := range []string{"redis over TCP", "4 times", "25.0 %", "cc1 (process 4711) 20.0 %", "other machines 5.0 %", "-force"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %q", want, err)
		}
	}
}
