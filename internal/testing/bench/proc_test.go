// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"smcr/internal/testing/testkind"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	const tail = " 0 -1 4194560 100 200 0 0 12 34 5 6 20 0 1 0 100 1000 200"
	got, err := ParseStat("42 (a) b ((x) S 7 42 42" + tail)
	want := Proc{PID: 42, Parent: 7, Name: "a) b ((x", User: 120 * time.Millisecond, System: 340 * time.Millisecond, Children: 110 * time.Millisecond}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got.Total() != 570*time.Millisecond {
		t.Errorf("total %v", got.Total())
	}
	// A kernel thread: flags 0x208040.
	if got, err := ParseStat("3 (kworker/0:0) I 2 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1"); err != nil || !got.Kernel {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "42", "42 (a", ") 42 (a", "42 (a) S 7", "x (a) S 7 42 42" + tail, "42 (a) S y 42 42" + tail} {
		if got, err := ParseStat(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestParseCPU(t *testing.T) {
	got, err := ParseCPU("cpu  100 10 200 5000 50 3 7 20 99 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	want := CPU{Busy: 310 * tick, Idle: 5050 * tick, Interrupts: 10 * tick, Steal: 20 * tick}
	if err != nil || got != want || got.Total() != 5390*tick {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 x"} {
		if got, err := ParseCPU(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestParsePSS(t *testing.T) {
	got, err := ParsePSS("00400000-7fff [rollup]\nRss:   900 kB\nPss:   100 kB\nPss_Dirty:   7 kB\n")
	if err != nil || got != 100<<10 {
		t.Errorf("%d, %v", got, err)
	}
	for _, bad := range []string{"", "Pss: x kB\n", "Pss_Anon: 7 kB\n"} {
		if got, err := ParsePSS(bad); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
}

func TestTree(t *testing.T) {
	s := snapshot(
		Proc{PID: 1, Name: "init"},
		Proc{PID: 10, Parent: 1, User: 10}, Proc{PID: 11, Parent: 10, System: 20}, Proc{PID: 12, Parent: 11, Children: 40},
		Proc{PID: 20, Parent: 1, User: 80},
	)
	if got := s.Time(10); got != 70 {
		t.Errorf("tree of 10: %d", got)
	}
	if got := s.Time(20, 12, 11, 99); got != 140 { // 12 is counted once
		t.Errorf("trees of 20, 12 and 11: %d", got)
	}
}

// TestReadSnapshot finds this process, its parent, and the time it uses.
func TestReadSnapshot(t *testing.T) {
	testkind.System(t)
	before, err := ReadSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	var after Snapshot
	me := os.Getpid()
	testkind.Eventually(t, "this process has used CPU time", func() (any, bool) {
		for sum, i := 0, 0; i < 1e7; i++ {
			sum += i * i
		}
		if after, err = ReadSnapshot(); err != nil {
			t.Fatal(err)
		}
		return after.Procs[me], after.Procs[me].User > before.Procs[me].User
	})
	p := after.Procs[me]
	if p.Parent != os.Getppid() || p.Kernel || !strings.HasPrefix("bench.test", p.Name) {
		t.Errorf("this process: %+v", p)
	}
	if after.CPU.Total() <= before.CPU.Total() {
		t.Errorf("the machine: %+v, later %+v", before.CPU, after.CPU)
	}
	pss, err := after.PSS(me)
	if err != nil || pss < 1<<20 || pss > 10<<30 {
		t.Errorf("memory of this process: %d, %v", pss, err)
	}
}
