// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// OthersLimit is the share of the machine's CPU that others may use during a
// measurement that counts.
const OthersLimit = 0.03

// unseenLimit is the share of the machine's CPU that may be charged to no
// process. The kernel charges the time of processes exactly and that of the
// machine by samples, so a few hundredths mean nothing; more are processes in
// containers that this one cannot see.
const unseenLimit = 0.10

// Others is what the machine's CPU did for others between two snapshots.
type Others struct {
	// Share of the machine's CPU, 0 to 1.
	Share float64
	// Who says which programs, the busiest first, each with its share.
	Who []Consumer
}

// Consumer is a program and the share of the machine's CPU that it used.
type Consumer struct {
	Name  string
	PID   int // 0: no process
	Share float64
}

// FindOthers compares two snapshots. Processes that descend from root are not
// others, and neither are kernel threads, which may work for us. What the
// hypervisor took away is. A root whose programs start further ones is to adopt
// orphans (PR_SET_CHILD_SUBREAPER), or these are others once their parent ended.
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
	// The time of a process that ended is found again with the parent that
	// waited for it, whole: what was in the first snapshot does not count. A
	// parent that does not wait inherits nothing, hence the limit.
	gone := make(map[int]time.Duration) // by the nearest ancestor that lives
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
		b := before.Procs[pid] // zero: it began in between
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
	// A process that ended while the first snapshot was made may bring its
	// parent more than it used since then.
	idle := after.CPU.Idle - before.CPU.Idle
	o.Share = share(min(others, total-idle))
	slices.SortFunc(o.Who, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.PID, b.PID))
	})
	return o
}

// Quiet reports whether others left the machine to us.
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

// BusyError says that the machine was not ours during a measurement.
type BusyError struct {
	// What was measured, and how often it was tried.
	What  string
	Tries int
	// Others of the last try.
	Others Others
}

// Error says what ran, and what to do.
func (e *BusyError) Error() string {
	return fmt.Sprintf("bench: %s: the machine is not quiet (tried %d times): %v, more than %.0f %%; end what runs there, or measure nevertheless with -force",
		e.What, e.Tries, e.Others, 100*OthersLimit)
}
