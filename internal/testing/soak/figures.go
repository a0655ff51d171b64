// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/traffic"
)

// figures are losses and delays of the connections beside a flood, and what the flood costs the stacks.
type figures struct {
	at             time.Time
	took           time.Duration
	sent           int64 // by the flood
	trips          traffic.Times
	tried, made    int64 // connections
	connects       traffic.Times
	smc            int64 // of these, both ends
	lost, hung     int64
	stacks         time.Duration // processor time of both
	busy, allClock time.Duration // of the machine: in use, and in all
}

// look returns the figures until now.
func (f *floodBed) look(ctx context.Context, sent interface{ Load() int64 }) *figures {
	sum := f.sum()
	x := &figures{at: time.Now(), sent: sent.Load(), trips: sum.Trips, tried: sum.Tried, made: sum.Conns, connects: sum.Connects, lost: f.refused.Load()}
	f.mu.Lock()
	row := f.row
	f.mu.Unlock()
	row.mu.Lock()
	x.lost, x.hung = x.lost+row.Lost+row.Corrupted, row.Hung
	row.mu.Unlock()
	for _, h := range []*netnstest.Host{f.a, f.b} {
		if st, err := f.stats(h); err == nil && ctx.Err() == nil {
			x.smc += st.SMCR.ClientV1 + st.SMCR.ClientV2
		}
	}
	for _, m := range f.stacks {
		x.stacks += processorTime(m.Pid())
	}
	x.busy, x.allClock = machineTime()
	return x
}

// since returns what has come since earlier figures.
func (x *figures) since(was *figures) *figures {
	return &figures{
		took: x.at.Sub(was.at), sent: x.sent - was.sent, trips: x.trips.Since(was.trips), tried: x.tried - was.tried, made: x.made - was.made,
		connects: x.connects.Since(was.connects), smc: x.smc - was.smc, lost: x.lost - was.lost, hung: x.hung - was.hung,
		stacks: x.stacks - was.stacks, busy: x.busy - was.busy, allClock: x.allClock - was.allClock,
	}
}

// tick is the unit of processor times in procfs.
const tick = time.Second / 100

// processorTime returns what a process has used, or 0 if it has ended.
func processorTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ") // behind the name
	return ticks(strings.Fields(rest), 11, 12)
}

// machineTime returns the processor time of the machine that was used, and all of it.
func machineTime() (busy, all time.Duration) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)[1:]
	all = ticks(f, 0, 1, 2, 3, 4, 5, 6, 7)
	return all - ticks(f, 3, 4), all
}

func ticks(fields []string, at ...int) (sum time.Duration) {
	for _, i := range at {
		if i < len(fields) {
			n, _ := strconv.ParseInt(fields[i], 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// printFigures prints a table in the form of docs/reliability.md.
func printFigures(w io.Writer, rows []*Row) {
	fmt.Fprintln(w, "| flood | a second | round trips | median | 99 % | longest | above 100 ms | connects | over SMC-R | median | 99 % | longest | failed | stacks | machine |")
	fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, r := range rows {
		if x := r.Figures; x != nil {
			fmt.Fprintf(w, "| %s | %s |\n", r.Fault, strings.Join(x.cells(), " | "))
		}
	}
}

// late is what no connection should wait.
const late = 100 * time.Millisecond

func (x *figures) cells() []string {
	cells := []string{fmt.Sprint(perSecond(x.sent, x.took)), fmt.Sprint(x.trips.Count())}
	cells = append(append(cells, delays(x.trips)...), fmt.Sprint(x.trips.Above(late)), fmt.Sprint(x.made), percent(x.smc, x.made))
	cells = append(append(cells, delays(x.connects)...), fmt.Sprint(x.lost+x.hung))
	return append(cells, percent(int64(x.stacks), int64(x.took)), percent(int64(x.busy), int64(x.allClock)))
}

func perSecond(n int64, d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64(float64(n) / d.Seconds())
}

func percent(n, of int64) string {
	if of <= 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(of))
}

func delays(t traffic.Times) (cells []string) {
	for _, share := range []float64{0.5, 0.99, 1} {
		d := t.Within(share)
		cells = append(cells, d.Round(max(time.Microsecond, d/100)).String())
	}
	return cells
}
