// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// OthersLimit is the largest share of the machine's CPU that others may use during a
// valid measurement.
const OthersLimit = 0.03

// unseenLimit is the largest share of the machine's CPU that may belong to no process.
// The kernel counts the time of processes exactly and that of the machine by samples, so
// a few hundredths mean nothing. A larger share belongs to processes in containers that
// this process cannot see.
const unseenLimit = 0.10

// Others is the CPU time of others between two snapshots.
type Others struct {
	// Share is the share of the machine's CPU, 0 to 1.
	Share float64
	// Who has the programs with their shares, the busiest first.
	Who []Consumer
}

// Consumer is a program with its share of the machine's CPU.
type Consumer struct {
	Name  string
	PID   int // 0 means no process
	Share float64
}

// FindOthers compares two snapshots. Descendants of root are not others, nor are kernel
// threads, which may work for the measurement. Time that the hypervisor took away counts
// as others. If programs of root start further programs, root must adopt orphans
// (PR_SET_CHILD_SUBREAPER): otherwise these programs become others when their parent
// ends.
func FindOthers(before, after Snapshot, root int) Others {
	total := after.CPU.Total() - before.CPU.Total()
	if total <= 0 {
		return Others{}
	}
	share := func(d time.Duration) float64 { return float64(d) / float64(total) }
	var o Others
	add := func(name string, pid int, d time.Duration) {
		if d > 0 {
			o.Who = append(o.Who, Consumer{Name: name, PID: pid, Share: share(d)})
		}
	}
	ours := before.Tree(root)
	for pid, p := range after.Tree(root) {
		ours[pid] = p
	}
	// The whole time of a process that has ended is added to the parent that waited for
	// it, so the part from before the first snapshot is subtracted. A parent that does
	// not wait gets nothing, so no more is subtracted than it got.
	gone := make(map[int]time.Duration) // by the nearest ancestor that still runs
	for pid, p := range before.Procs {
		if _, alive := after.Procs[pid]; alive {
			continue
		}
		heir := p.Parent
		for {
			_, alive := after.Procs[heir]
			parent, known := before.Procs[heir]
			if alive || !known {
				break
			}
			heir = parent.Parent
		}
		gone[heir] += p.Total()
	}
	var others, all time.Duration
	for pid, p := range after.Procs {
		b := before.Procs[pid] // zero if the process has started since
		if p.Total() < b.Total() {
			b = Proc{} // another process has the number now
		}
		used := p.User + p.System - b.User - b.System + max(0, p.Children-b.Children-gone[pid])
		all += used
		if _, mine := ours[pid]; !mine && !p.Kernel {
			others += used
			add(p.Name, pid, used)
		}
	}
	steal := after.CPU.Steal - before.CPU.Steal
	add("the hypervisor, for other machines", 0, steal)
	others += steal
	if unseen := after.CPU.Busy - before.CPU.Busy - all; share(unseen) > unseenLimit {
		add("processes that /proc does not show", 0, unseen)
		others += unseen
	}
	// If a process ended while the first snapshot was made, its parent may get more time
	// than the process has used since then.
	idle := after.CPU.Idle - before.CPU.Idle
	o.Share = share(min(others, total-idle))
	slices.SortFunc(o.Who, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.PID, b.PID))
	})
	return o
}

// Quiet reports whether others used at most OthersLimit.
func (o Others) Quiet() bool { return o.Share <= OthersLimit }

// String names the busiest programs.
func (o Others) String() string {
	var who []string
	for _, c := range o.Who[:min(5, len(o.Who))] {
		name := c.Name
		if c.PID != 0 {
			name = fmt.Sprintf("%s (process %d)", c.Name, c.PID)
		}
		who = append(who, fmt.Sprintf("%s %.1f %%", name, 100*c.Share))
	}
	s := fmt.Sprintf("others used %.1f %% of the CPU", 100*o.Share)
	if len(who) > 0 {
		s += ": " + strings.Join(who, ", ")
	}
	return s
}

// BusyError means that others used the machine during a measurement.
type BusyError struct {
	// What is the measurement, Tries how often it was repeated.
	What  string
	Tries int
	// Others are those of the last attempt.
	Others Others
}

// Error says which programs ran, and what to do.
func (e *BusyError) Error() string {
	return fmt.Sprintf("bench: %s: the machine is not quiet (tried %d times): %v, more than %.0f %%; end what runs there, or measure nevertheless with -force",
		e.What, e.Tries, e.Others, 100*OthersLimit)
}
