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

	"smcr/nl"
	"smcr/stats"
	"smcr/userstack/broker"
	"smcr/userstack/launch"
	"smcr/userstack/wire"
)

// summary tells how many connections used SMC-R, and why each other did not:
// one line a reason, the most frequent first.
func summary(w io.Writer, s launch.Stats) {
	tcp, failed := total(s.TCP), total(s.Failed)
	fmt.Fprintf(w, "smcr: %d connections over SMC-R, %d over TCP", s.ByMode[broker.ModeSMCR], tcp)
	if failed > 0 {
		fmt.Fprintf(w, ", %d failed", failed)
	}
	fmt.Fprintln(w)
	reasons(w, "over TCP", s.TCP)
	reasons(w, "failed", s.Failed)
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
		return k, errors.New("it cannot be asked")
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

// kernelSummary is summary for the kernel's SMC. The sockets are the program's,
// the launcher does not see what becomes of them; the kernel counts the
// connections of a network namespace, those of other programs included.
func kernelSummary(w io.Writer, s launch.Stats, before, after kernelCounters) {
	if before.valid && after.valid {
		d, f := after.stats.Sub(before.stats), after.fallbacks.Sub(before.fallbacks)
		fmt.Fprintf(w, "smcr: %d connections over SMC-R, %d over SMC-D, %d over TCP (all of this network namespace)\n",
			d.SMCR.Connections(), d.SMCD.Connections(), f.ClientTotal+f.ServerTotal)
		why := make(map[string]uint64)
		for _, r := range f.Reasons {
			why[fallbackText(r)] += r.Count
		}
		reasons(w, "over TCP", why)
	}
	fmt.Fprintf(w, "smcr: %d SMC sockets made, %d TCP sockets\n", s.KernelSockets, total(s.NativeSockets))
	reasons(w, "TCP sockets", s.NativeSockets)
}

// fallbackText says why a connection became TCP.
func fallbackText(r stats.Fallback) string {
	text := cmp.Or(wire.Diagnosis(r.Reason).Text(), "unknown reason")
	return fmt.Sprintf("%s (0x%08x, as %s)", text, r.Reason, r.Side)
}

func total(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// reasons prints one line a reason, the most frequent first.
func reasons(w io.Writer, word string, m map[string]uint64) {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	for _, k := range keys {
		fmt.Fprintf(w, "smcr: %d %s: %s\n", m[k], word, k)
	}
}
