// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"smcr/internal/kernelsmc"
	"smcr/internal/output"
	"smcr/internal/plain"
	"smcr/internal/printable"
	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
)

// summary prints how many connections used SMC-R, and why the others did not: one
// line for each reason, the most frequent first. It asks for the stack's devices if there were
// connections over SMC-R.
func summary(w io.Writer, s outcomes, devices func() []nl.Device) {
	fmt.Fprintf(w, "smcr: %s over SMC-R, %d over TCP", output.Count(s.smcr, "connection"), total(s.tcp))
	if s.local > 0 {
		fmt.Fprintf(w, ", %d local", s.local)
	}
	fmt.Fprintln(w)
	if s.smcr > 0 {
		onSoftware(w, devices())
	}
	perReason(w, overTCP, s.tcp)
	perReason(w, func(n uint64) string { return fmt.Sprint(n, " reset") }, s.resets)
}

// onSoftware says which of the devices of SMC-R are no RDMA cards, if any.
func onSoftware(w io.Writer, devices []nl.Device) {
	var names []string
	for i := range devices {
		if devices[i].SoftwareRoCE() {
			names = append(names, devices[i].Name)
		}
	}
	switch len(names) {
	case 0:
	case len(devices):
		fmt.Fprintln(w, "smcr: SMC-R was over software RoCE (no card): see smcr(7)")
	default:
		printable.Fprintf(w, "smcr: %s: software RoCE (no card), see smcr(7)\n", strings.Join(names, ", "))
	}
}

// kernelCounters are the kernel's counters of a network namespace.
type kernelCounters struct {
	valid     bool
	stats     nl.Stats
	fallbacks nl.Fallbacks
}

// countKernel reads the counters.
func countKernel(ctx context.Context, c *nl.Client) (k kernelCounters, err error) {
	if c == nil {
		return k, errors.New("the kernel does not answer")
	}
	// The program's end may have ended ctx.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kernelTimeout)
	defer cancel()
	if k.stats, err = c.Stats(ctx); err == nil {
		k.fallbacks, err = c.Fallbacks(ctx)
	}
	k.valid = err == nil
	return k, err
}

// kernelSummary prints the summary for the kernel's SMC. Nobody sees the connections of the
// program's sockets. The kernel counts the connections of a network namespace, including those
// of other programs.
func kernelSummary(w io.Writer, s kernelsmc.Stats, before, after kernelCounters) {
	if before.valid && after.valid {
		d, f := after.stats.Sub(before.stats), after.fallbacks.Sub(before.fallbacks)
		fmt.Fprintf(w, "smcr: %s over SMC-R, %d over SMC-D, %d over TCP (all of this network namespace)\n",
			output.Count(d.SMCR.Connections(), "connection"), d.SMCD.Connections(), f.ClientTotal+f.ServerTotal)
		why := make(map[string]uint64)
		for _, r := range f.Reasons {
			why[fallbackText(r)] += r.Count
		}
		perReason(w, overTCP, why)
	}
	fmt.Fprintf(w, "smcr: %s of the program used the kernel's SMC, %d used TCP\n", output.Count(s.SMC, "socket"), total(s.TCP))
	perReason(w, func(n uint64) string { return output.Count(n, "TCP socket") }, s.TCP)
}

// fallbackText returns why a connection became TCP.
func fallbackText(r stats.Fallback) string {
	text := cmp.Or(smc.Diagnosis(r.Reason).Text(), "unknown reason")
	return fmt.Sprintf("%s (0x%08x, as %s)", text, r.Reason, r.Side)
}

func overTCP(n uint64) string { return fmt.Sprint(n, " over TCP") }

func total(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// perReason prints one line for each reason, the most frequent first, and where to read more.
func perReason(w io.Writer, count func(uint64) string, m map[string]uint64) {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	for _, k := range keys {
		text, hint := plain.Text(k), ""
		if r, ok := reasons.In(text); ok {
			hint = " (" + r.Hint() + ")"
		}
		printable.Fprintf(w, "smcr: %s: %s%s\n", count(m[k]), text, hint)
	}
}
