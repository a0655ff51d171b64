// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
)

// A statsReport prints counters in the layout of smc-tools, with the units of this program.
type statsReport struct {
	b       *strings.Builder
	details bool
}

// line prints a name and a formatted value.
func (r statsReport) line(name string, format string, args ...any) {
	printable.Fprintf(r.b, "  %-28s %12s\n", name, fmt.Sprintf(format, args...))
}

// optional prints a value as number does, or "-" if the stack does not count it.
func (r statsReport) optional(counted bool, name string, v uint64, remark string) {
	if !counted {
		r.line(name, "-")
		return
	}
	r.number(name, v, remark)
}

// number prints a value, and a remark after it unless that is empty.
func (r statsReport) number(name string, v uint64, remark string) {
	printable.Fprintf(r.b, "  %-28s %12d", name, v)
	if remark != "" {
		printable.Fprintf(r.b, " (%s)", remark)
	}
	r.b.WriteString("\n")
}

// sides prints the sum of both sides, and each side with --details.
func (r statsReport) sides(name string, client, server uint64) {
	remark := ""
	if r.details {
		remark = fmt.Sprintf("client %d, server %d", client, server)
	}
	r.number(name, client+server, remark)
}

// print prints all counters of a stack.
func (r statsReport) print(s *counters) {
	t := &s.stats.SMCR
	conns := t.Connections()
	hsErrors := s.stats.ClientHandshakeErrors + s.stats.ServerHandshakeErrors
	fallbacks := s.fallbacks.ClientTotal + s.fallbacks.ServerTotal

	r.b.WriteString("SMC-R Connections Summary\n")
	r.number("Total connections handled", conns+hsErrors+fallbacks, "")
	r.sides("SMC connections", t.ClientV1+t.ClientV2, t.ServerV1+t.ServerV2)
	if r.details {
		r.number("  v1", t.ClientV1+t.ServerV1, "")
		r.number("  v2", t.ClientV2+t.ServerV2, "")
	}
	r.sides("Handshake errors", s.stats.ClientHandshakeErrors, s.stats.ServerHandshakeErrors)
	// Only user-space stacks count the following.
	if mean := meanTime(&s.stats); mean > 0 {
		r.line("Mean handshake time", "%v", mean.Round(10*time.Microsecond))
	}
	if s.stats.Failovers > 0 {
		r.number("Failovers", s.stats.Failovers, "")
	}
	if s.stats.Panics > 0 {
		r.number("Panics survived", s.stats.Panics, "")
	}
	avg := 0.0
	if conns > 0 {
		avg = float64(t.RXCalls+t.TXCalls) / float64(conns)
	}
	r.line("Avg requests per SMC conn", "%.1f", avg)
	r.sides("TCP fallback", s.fallbacks.ClientTotal, s.fallbacks.ServerTotal)
	if r.details {
		r.reasons(s.fallbacks, smc.Server, "Server")
		r.reasons(s.fallbacks, smc.Client, "Client")
	}

	r.b.WriteString("\nRX Stats\n")
	r.number("Data transmitted (Bytes)", t.RXBytes, output.Size(t.RXBytes))
	r.number("Total requests", t.RXCalls, "")
	r.optional(t.Counts(stats.CountRXUsage), "Buffer usage (Bytes)", t.RXUsage, output.Size(t.RXUsage))
	r.number("Buffer full", t.RXBufs.Full, percent(t.RXBufs.Full, t.RXCalls))
	r.pool(&t.RXBufs)
	r.histogram(t.RXBufSizes, t.RXSizes)

	r.b.WriteString("\nTX Stats\n")
	r.number("Data transmitted (Bytes)", t.TXBytes, output.Size(t.TXBytes))
	r.number("Total requests", t.TXCalls, "")
	r.optional(t.Counts(stats.CountTXUsage), "Buffer usage (Bytes)", t.TXUsage, output.Size(t.TXUsage))
	r.number("Buffer full", t.TXBufs.Full, percent(t.TXBufs.Full, t.TXCalls))
	r.number("Buffer full (remote)", t.TXBufs.FullPeer, percent(t.TXBufs.FullPeer, t.TXCalls))
	r.optional(t.Counts(stats.CountTXSmall), "Buffer too small", t.TXBufs.Small, percent(t.TXBufs.Small, t.TXCalls))
	r.optional(t.Counts(stats.CountTXSmallPeer), "Buffer too small (remote)", t.TXBufs.SmallPeer, percent(t.TXBufs.SmallPeer, t.TXCalls))
	r.pool(&t.TXBufs)
	r.histogram(t.TXBufSizes, t.TXSizes)

	r.b.WriteString("\nExtras\n")
	r.number("Special socket calls", t.Cork+t.NoDelay+t.Sendpage+t.Splice+t.Urgent, "")
	if r.details {
		for _, c := range []struct {
			name    string
			n       uint64
			counted bool
		}{
			{"cork", t.Cork, true},
			{"nodelay", t.NoDelay, true},
			{"sendpage", t.Sendpage, t.Counts(stats.CountSendpage)},
			{"splice", t.Splice, t.Counts(stats.CountSplice)},
			{"urgent data", t.Urgent, true},
		} {
			r.optional(c.counted, "  "+c.name, c.n, "")
		}
		if s.resent != nil {
			r.number("RoCE packets sent again", s.resent.Packets, output.Count(s.resent.Timeouts, "timeout"))
		}
		if e := &s.stats.Engine; e.Threads > 0 {
			r.number("Engine threads", e.Threads, "")
			r.line("Engine CPU time", "%v", time.Duration(e.CPU).Round(10*time.Millisecond))
			r.number("Engine rounds", e.Rounds, "")
			r.number("Engine sleeps", e.Sleeps, "")
		}
	}
}

// meanTime returns the mean time of the handshakes of both sides, or 0 if there are none.
func meanTime(s *nl.Stats) time.Duration {
	n := s.ClientHandshakeTimes.Total() + s.ServerHandshakeTimes.Total()
	if n == 0 {
		return 0
	}
	return time.Duration((s.ClientHandshakeTimes.Sum + s.ServerHandshakeTimes.Sum) / n)
}

// otherCodes is the name of the codes of peers that are not known, and otherCodesText says so.
const (
	otherCodes     = "other"
	otherCodesText = "codes that are not known"
)

// reasons prints the fallback reasons of one side, the most frequent first, and below that
// of the peers what these gave as their reasons.
func (r statsReport) reasons(f nl.Fallbacks, side smc.Role, title string) {
	list := ofSide(f.Reasons, side)
	if len(list) == 0 {
		return
	}
	printable.Fprintf(r.b, "    %s\n", title)
	for _, x := range list {
		printable.Fprintf(r.b, "    %12d  %s\n", x.Count, smc.Diagnosis(x.Reason))
		if x.Reason != uint32(smc.DiagPeerDeclined) {
			continue
		}
		for _, p := range ofSide(f.PeerReasons, side) {
			text := smc.Diagnosis(p.Reason).String()
			if p.Reason == 0 {
				text = otherCodesText
			}
			printable.Fprintf(r.b, "    %12s  %d %s\n", "", p.Count, text)
		}
	}
}

// ofSide returns the reasons of one side, the most frequent first.
func ofSide(all []nl.Fallback, side smc.Role) (list []nl.Fallback) {
	for _, x := range all {
		if x.Side == side {
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(a, b nl.Fallback) int { return cmp.Compare(b.Count, a.Count) })
	return list
}

// pool prints how buffers were allocated.
func (r statsReport) pool(b *stats.Buffers) {
	if r.details {
		r.number("Buffer allocations", b.Alloc, "")
		r.number("Buffer reuses", b.Reuse, "")
		r.number("Buffer downgrades", b.Downgrade, "")
	}
}

// histogram prints two rows under one header: buffers and requests by size.
func (r statsReport) histogram(bufs, reqs stats.Histogram) {
	r.b.WriteString("      ")
	for i := range stats.Buckets {
		name := ">1024KiB"
		if limit := stats.BucketLimit(i); limit > 0 {
			name = fmt.Sprintf("%dKiB", limit/1024)
		}
		printable.Fprintf(r.b, " %8s", name)
	}
	for _, row := range []struct {
		name string
		h    stats.Histogram
	}{{"Bufs", bufs}, {"Reqs", reqs}} {
		printable.Fprintf(r.b, "\n  %s", row.name)
		for _, v := range row.h {
			printable.Fprintf(r.b, " %8s", abbreviate(v))
		}
	}
	r.b.WriteString("\n")
}

// percent returns part of whole in percent.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "0.00%"
	}
	return fmt.Sprintf("%.2f%%", 100*float64(part)/float64(whole))
}

// abbreviate returns a number in at most six characters.
func abbreviate(v uint64) string {
	if v < 100000 {
		return fmt.Sprint(v)
	}
	f := float64(v)
	for _, unit := range []string{"K", "M", "G", "T", "P", "E"} {
		f /= 1000
		if f >= 999.95 && unit != "E" {
			continue
		}
		digits := 1
		if f < 99.995 {
			digits = 2
		}
		if f < 9.9995 {
			digits = 3
		}
		return fmt.Sprintf("%.*f%s", digits, f, unit)
	}
	return fmt.Sprint(v)
}
