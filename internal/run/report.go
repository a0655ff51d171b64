// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"smcr/nl"
	"smcr/userstack/launch"
)

// reportPatience is how long the status of a program waits for the last of its processes, so that
// smcr run -v reports once. A launcher needs a few milliseconds to find that there is none left.
const reportPatience = 200 * time.Millisecond

// devicesTimeout is how long the stack may take to list its devices.
const devicesTimeout = time.Second

// report is what smcr run -v prints about the connections of a program. Whoever reads it finds
// it when the program has ended: it is printed before the front ends.
type report struct {
	ctx    context.Context
	o      *Options
	c      *carrier
	log    *slog.Logger
	before kernelCounters

	mu   sync.Mutex
	told bool        // the front knows that the program has ended
	wait *time.Timer // for the other processes
}

// newReport begins a report.
func newReport(ctx context.Context, o *Options, c *carrier, log *slog.Logger) *report {
	r := &report{ctx: ctx, o: o, c: c, log: log}
	if c.mode == ModeKernel && o.Verbose {
		var err error
		if r.before, err = countKernel(ctx, c.control); err != nil {
			log.Warn("the kernel does not count connections", "err", err)
		}
	}
	return r
}

// ended reports at the end of the program, if other processes of it go on. all is closed when these
// have ended, too.
func (r *report) ended(front *launch.Front, all <-chan struct{}, stats func() launch.Stats) {
	if !r.o.Verbose {
		front.Ended()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wait = time.AfterFunc(reportPatience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		select {
		case <-all: // the launcher only takes its time: over follows
			return
		default:
		}
		if r.told {
			return
		}
		r.told = true
		fmt.Fprintln(r.o.Err, "smcr: the program has ended, and processes that it started go on; until now:")
		r.print(stats())
		front.Ended()
	})
}

// over reports at the end of the last process.
func (r *report) over(front *launch.Front, stats launch.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wait != nil {
		r.wait.Stop()
	}
	if r.o.Verbose {
		r.print(stats)
	}
	if !r.told {
		r.told = true
		front.Ended()
	}
}

// print prints the numbers, in one write: several programs may have the same standard error.
func (r *report) print(stats launch.Stats) {
	var b bytes.Buffer
	defer func() { _, _ = r.o.Err.Write(b.Bytes()) }()
	if r.c.mode != ModeKernel {
		summary(&b, stats, func() []nl.Device { return userDevices(r.ctx) })
		return
	}
	after, err := countKernel(r.ctx, r.c.control)
	if err != nil && r.before.valid {
		r.log.Warn("the kernel no longer counts connections", "err", err)
	}
	kernelSummary(&b, stats, r.before, after)
}

// userDevices returns the devices of the user-space stack, or none if it does not answer: the
// program has ended by then, and its user waits for the prompt.
func userDevices(ctx context.Context) []nl.Device {
	// The program's end may have ended ctx.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devicesTimeout)
	defer cancel()
	c, err := nl.DialUser(ctx)
	if err != nil {
		return nil
	}
	defer c.Close()
	list, err := c.Devices(ctx)
	if err != nil {
		return nil
	}
	return list
}
