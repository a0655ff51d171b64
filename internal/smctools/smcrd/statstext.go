// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"smcr/stats"
)

// tech returns the technology that is shown.
func (t *commandLine) tech(c *counters) *stats.Tech {
	if t.smcd {
		return &c.SMCD
	}
	return &c.SMCR
}

func (t *commandLine) printJSON(c *counters) {
	t.Printf("{\"%s\": {", strings.ReplaceAll(t.technology(), "-", ""))
	tech := t.tech(c)
	not := t.notCounted(tech)
	for i, n := range numbers(tech) {
		if i > 0 {
			t.Printf(",")
		}
		if slices.Contains(not, n) {
			t.Printf("\"%s\":null", names[i])
			continue
		}
		t.Printf("\"%s\":%d", names[i], *n)
	}
	t.Printf("}}\n")
}

// notCounted returns the counters that the stack does not have. For a kernel, the result
// is empty, because smc-tools prints such counters of a kernel as 0.
func (t *commandLine) notCounted(s *stats.Tech) (not []*uint64) {
	if t.Backend != "user" && !strings.HasPrefix(t.Backend, "unix:") {
		return nil
	}
	for c, n := range map[stats.Counters]*uint64{
		stats.CountSendpage: &s.Sendpage, stats.CountSplice: &s.Splice,
		stats.CountTXSmall: &s.TXBufs.Small, stats.CountTXSmallPeer: &s.TXBufs.SmallPeer,
		stats.CountRXSmall: &s.RXBufs.Small, stats.CountRXSmallPeer: &s.RXBufs.SmallPeer, stats.CountRXFullPeer: &s.RXBufs.FullPeer,
		stats.CountRXUsage: &s.RXUsage, stats.CountTXUsage: &s.TXUsage,
	} {
		if !s.Counts(c) {
			not = append(not, n)
		}
	}
	return not
}

func (t *commandLine) printStats(c *counters) {
	s := t.tech(c)
	not := t.notCounted(s)
	details := t.details > 0
	conns := s.Connections()
	errs := c.ClientHandshakeErrors + c.ServerHandshakeErrors
	fallbacks := c.clientSum + c.serverSum
	perConn := float32(0)
	if conns > 0 {
		perConn = float32(float64(s.RXCalls+s.TXCalls) / float64(conns))
	}

	t.Printf("%s Connections Summary\n", t.technology())
	t.Printf("  Total connections handled  %12d\n", conns+errs+fallbacks)
	t.sides("SMC connections", conns, s.ClientV1+s.ClientV2, s.ServerV1+s.ServerV2)
	if details {
		t.Printf("    v1                       %12d\n", s.ClientV1+s.ServerV1)
		t.Printf("    v2                       %12d\n", s.ClientV2+s.ServerV2)
	}
	t.sides("Handshake errors", errs, c.ClientHandshakeErrors, c.ServerHandshakeErrors)
	if c.Panics > 0 { // only the user-space stack counts them
		t.Printf("  Panics survived            %12d\n", c.Panics)
	}
	t.Printf("  Avg requests per SMC conn  %14.1f\n", perConn)
	t.sides("TCP fallback", fallbacks, c.clientSum, c.serverSum)
	if details {
		t.reasons("Server", c.server)
		t.reasons("Client", c.client)
	}

	t.Printf("\nRX Stats\n")
	t.direction(s.RXBytes, s.RXCalls, s.RXUsage)
	t.share("Buffer full", s.RXBufs.Full, s.RXCalls)
	t.histograms(&s.RXBufs, s.RXBufSizes, s.RXSizes)

	t.Printf("\nTX Stats\n")
	t.direction(s.TXBytes, s.TXCalls, s.TXUsage)
	t.share("Buffer full", s.TXBufs.Full, s.TXCalls)
	t.share("Buffer full (remote)", s.TXBufs.FullPeer, s.TXCalls)
	if slices.Contains(not, &s.TXBufs.Small) {
		t.Printf("  %-26s %12s\n  %-26s %12s\n", "Buffer too small", "-", "Buffer too small (remote)", "-")
	} else {
		t.share("Buffer too small", s.TXBufs.Small, s.TXCalls)
		t.share("Buffer too small (remote)", s.TXBufs.SmallPeer, s.TXCalls)
	}
	t.histograms(&s.TXBufs, s.TXBufSizes, s.TXSizes)

	t.Printf("\nExtras\n")
	t.Printf("  Special socket calls       %12d\n", s.Cork+s.NoDelay+s.Sendpage+s.Splice+s.Urgent)
	if details {
		t.Printf("    cork                     %12d\n", s.Cork)
		t.Printf("    nodelay                  %12d\n", s.NoDelay)
		if slices.Contains(not, &s.Splice) {
			t.Printf("    sendpage                 %12s\n    splice                   %12s\n", "-", "-")
		} else {
			t.Printf("    sendpage                 %12d\n", s.Sendpage)
			t.Printf("    splice                   %12d\n", s.Splice)
		}
		t.Printf("    urgent data              %12d\n", s.Urgent)
	}
}

// sides prints a number and, with details, its two parts.
func (t *commandLine) sides(name string, sum, client, server uint64) {
	t.Printf("  %-26s %12d", name, sum)
	if t.details > 0 {
		t.Printf(" (client %d, server %d)", client, server)
	}
	t.Printf("\n")
}

// reasons prints the three most frequent reasons of a side.
func (t *commandLine) reasons(side string, list [maxReasons]reason) {
	slices.SortStableFunc(list[:], func(a, b reason) int { return int(b.count) - int(a.count) })
	printed := 0
	for _, r := range list {
		if r.code == 0 || printed == 3 {
			continue
		}
		if printed == 0 {
			t.Printf("    %s\n", side)
		}
		printed++
		t.Printf("     %-12s            %12d\n", reasonName(uint32(r.code)), r.count)
	}
}

func (t *commandLine) direction(bytes, calls, usage uint64) {
	t.Printf("  Data transmitted (Bytes) %14d (%s)\n", bytes, abbreviate(bytes))
	t.Printf("  Total requests             %12d\n", calls)
	t.Printf("  Buffer usage (Bytes)       %12d (%s)\n", usage, abbreviate(usage))
}

// share prints a number of events and their share of the requests.
func (t *commandLine) share(name string, n, calls uint64) {
	percent := float32(0)
	if calls > 0 {
		percent = float32(float64(n) / float64(calls) * 100)
	}
	t.Printf("  %-26s %12d (%.2f%%)\n", name, n, percent)
}

func (t *commandLine) histograms(b *stats.Buffers, bufs, reqs stats.Histogram) {
	if t.details > 0 {
		t.Printf("  Buffer downgrades          %12d\n", b.Downgrade)
		t.Printf("  Buffer reuses              %12d\n", b.Reuse)
	}
	t.Printf("            8KB    16KB    32KB    64KB   128KB   256KB   512KB  >512KB\n")
	for _, row := range []struct {
		name string
		h    stats.Histogram
	}{{"Bufs", bufs}, {"Reqs", reqs}} {
		t.Printf("  %s ", row.name)
		last := len(row.h) - 2 // 1024 KiB and more are one column
		row.h[last] += row.h[last+1]
		for _, n := range row.h[:last+1] {
			t.Printf("  %6s", abbreviate(n))
		}
		t.Printf("\n")
	}
}

// abbreviate formats a number in at most six characters: at least three digits, a
// point, and a decimal unit.
func abbreviate(n uint64) string {
	const width = 6
	digits := len(strconv.FormatUint(n, 10))
	if digits < 4 {
		return strconv.FormatUint(n, 10)
	}
	// before and after are the numbers of digits before and after the point.
	layout := func() (before, after int, unit byte, factor float64) {
		before = (digits-1)%3 + 1
		after = width - before - 2
		power := (digits - 1) / 3
		return before, after, "?KMGTP?"[power], math.Pow(1000, float64(power))
	}
	before, after, unit, factor := layout()
	v := float64(n) / factor
	if v+5*math.Pow(10, float64(-1-after)) >= math.Pow(10, float64(before)) {
		// Rounding up has added a digit.
		after--
	}
	return fmt.Sprintf("%*.*f%c", width-1, after, v, unit)
}

// reasonName returns the short name of a decline code.
func reasonName(code uint32) string {
	switch code {
	case 0x01010000:
		return "MEMORY"
	case 0x02010000:
		return "TIMEOUT_CL"
	case 0x02020000:
		return "TIMEOUT_AL"
	case 0x03000000:
		return "CNF_ERR"
	case 0x03010000:
		return "PEER_NO_SMC"
	case 0x03020000:
		return "IPSEC"
	case 0x03030000:
		return "NOSMCDEV"
	case 0x03030001:
		return "NOSMCDDEV"
	case 0x03030002:
		return "NOSMCRDEV"
	case 0x03030003:
		return "NOISM2SUPP"
	case 0x03030004:
		return "NOV2EXT"
	case 0x03030005:
		return "NOV2DEXT"
	case 0x03030006:
		return "NOSEID"
	case 0x03030007:
		return "NOSMCD2DEV"
	case 0x03040000:
		return "MODEUNSUPP"
	case 0x03050000:
		return "RMBE_EC"
	case 0x03060000:
		return "OPTUNSUPP"
	case 0x03070000:
		return "DIFFPREFIX"
	case 0x03080000:
		return "GETVLANERR"
	case 0x03090000:
		return "ISMVLANERR"
	case 0x030a0000:
		return "NOACTLINK"
	case 0x030b0000:
		return "NOSRVLINK"
	case 0x030c0000:
		return "VERSMISMAT"
	case 0x030d0000:
		return "MAX_DMB"
	case 0x04000000:
		return "SYNCERR"
	case 0x05000000:
		return "PEERDECL"
	}
	return "[unknown]"
}
