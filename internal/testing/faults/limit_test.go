// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitRoom is how many more descriptors a process may open in the runs of
// TestDescriptorLimit: from none to more than one connection needs.
const limitRoom = 8

// limitTime is how long a process has no more.
const limitTime = 5 * time.Second

// TestDescriptorLimit takes the descriptors of a process away while it runs: the kernel
// then refuses all calls that make one, and drops descriptors that a message carries.
// Connections are SMC-R or TCP, or end with an error, and all is as before when there is
// room again.
func TestDescriptorLimit(t *testing.T) {
	skipShort(t)
	l := newServedLab(t)
	for _, what := range slices.Sorted(maps.Keys(l.watched)) {
		sum := Row{Fault: "no descriptor left (RLIMIT_NOFILE)", Traffic: what, Outcome: "the connection is SMC-R or TCP, or ends with an error"}
		for room := 0; room <= limitRoom; room++ {
			if !full() && seedOf(t)%(limitRoom+1) != uint64(room) {
				continue
			}
			pid, err := l.watched[what]()
			if err != nil {
				t.Fatal(err)
			}
			limit, err := limitFor(pid, room)
			if err != nil {
				t.Fatal(err)
			}
			var old unix.Rlimit
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
				t.Fatal(err)
			}
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}, nil); err != nil {
				t.Fatal(err)
			}
			// Over TCP too, connections wait for a server that has no descriptor for them.
			again := time.AfterFunc(limitTime, func() { _ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil) })
			r, log := l.client(sweepConns, "-bytes", sweepBytes)
			again.Stop()
			r.Runs = 1
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
				t.Fatal(err)
			}
			if !r.Good() {
				t.Errorf("room for %d in the %s: %+v\n%s", room, what, r, log)
			}
			if err := l.settle(&r); err != nil {
				t.Errorf("room for %d in the %s: %v", room, what, err)
			}
			sum.Add(r)
		}
		finish(t, sum)
	}
}

// limitFor returns the limit at which a process can open so many more descriptors. The
// kernel takes the lowest free number, which must be below the limit.
func limitFor(pid, room int) (uint64, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, err
	}
	open := map[string]bool{}
	for _, e := range entries {
		open[e.Name()] = true
	}
	limit := 0
	for free := 0; free < room || open[strconv.Itoa(limit)]; limit++ {
		if !open[strconv.Itoa(limit)] {
			free++
		}
	}
	return uint64(limit), nil
}
