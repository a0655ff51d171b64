// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"strconv"
	"time"

	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"

	"github.com/prometheus/client_golang/prometheus"
)

// device is a device of a stack.
type device = nl.Device

// groupTypes and linkStates are the values of the labels type and state, by their numbers.
// The last one stands for all others.
var (
	groupTypes = []string{"none", "single", "symmetric", "asymmetric_peer", "asymmetric_local", "other"}
	linkStates = []string{"unused", "inactive", "activating", "active", "other"}
)

// nameOf returns the name of v, or the last name.
func nameOf[T ~uint8 | ~uint32](names []string, v T) string {
	return names[min(int(v), len(names)-1)]
}

// count emits how many rows have each of the names, with 0 for a name that none has.
func count[T any](rows []T, of func(i int) string, names []string, f emit) {
	n := make(map[string]float64, len(names))
	for i := range rows {
		n[of(i)]++
	}
	for _, name := range names {
		f(n[name], name)
	}
}

// withStats makes the read function of a family that stacks have which have counters.
func withStats(read func(*stats.Stats, emit)) func(*view, emit) {
	return func(v *view, f emit) {
		if v.stats != nil {
			read(v.stats, f)
		}
	}
}

// withTech is withStats for the counters of SMC-R.
func withTech(read func(*stats.Tech, emit)) func(*view, emit) {
	return withStats(func(s *stats.Stats, f emit) { read(&s.SMCR, f) })
}

// ofUser is withStats for counters that only a stack in user space has.
func ofUser(read func(*stats.Stats, emit)) func(*view, emit) {
	return func(v *view, f emit) {
		if v.user {
			withStats(read)(v, f)
		}
	}
}

// ofDevices makes the read function of a family of the devices of a stack in user space.
func ofDevices(read func(*device, emit)) func(*view, emit) {
	return func(v *view, f emit) {
		for i := range v.devices {
			if d := &v.devices[i]; d.Provider != "" {
				read(d, f)
			}
		}
	}
}

// ofResent makes the read function of a counter of what devices have sent again.
func ofResent(read func(*nl.Resent) uint64) func(*view, emit) {
	return ofDevices(func(d *device, f emit) {
		if d.Resent != nil {
			f(float64(read(d.Resent)), d.Name)
		}
	})
}

// buffers returns a family of events of buffers. A stack does not have a direction whose
// counter is in its set of counters that it does not have.
func buffers(name, help string, event func(*stats.Buffers) uint64, rx, tx stats.Counters) family {
	return family{
		name: name, help: help, kind: prometheus.CounterValue, labels: []string{"direction"},
		read: withTech(func(t *stats.Tech, f emit) {
			if t.Counts(rx) {
				f(float64(event(&t.RXBufs)), receive)
			}
			if t.Counts(tx) {
				f(float64(event(&t.TXBufs)), send)
			}
		}),
	}
}

// readCalls emits the special socket calls that the stack counts.
func readCalls(t *stats.Tech, f emit) {
	f(float64(t.Cork), "cork")
	f(float64(t.NoDelay), "nodelay")
	if t.Counts(stats.CountSendpage) {
		f(float64(t.Sendpage), "sendpage")
	}
	if t.Counts(stats.CountSplice) {
		f(float64(t.Splice), "splice")
	}
	f(float64(t.Urgent), "urgent")
}

// otherReason is the value of the label reason for all codes without a name.
const otherReason = "other"

// reasonName returns the value of the label reason for a code.
func reasonName(code uint32) string { return cmp.Or(reasons.Label(smc.Diagnosis(code)), otherReason) }

// readFallbacks emits the fallbacks by side and reason. What the totals have beyond the sum
// over the reasons, because a stack keeps a limited number of these, is of other reasons.
func readFallbacks(v *view, f emit) {
	if v.fallbacks == nil {
		return
	}
	for _, side := range []smc.Role{smc.Client, smc.Server} {
		total, sum := v.fallbacks.ClientTotal, uint64(0)
		if side == smc.Server {
			total = v.fallbacks.ServerTotal
		}
		n := map[string]uint64{otherReason: 0, reasonName(uint32(smc.DiagPeerDeclined)): 0, reasonName(uint32(smc.DiagPeerNoSMC)): 0}
		for _, r := range v.fallbacks.Reasons {
			if r.Side == side {
				n[reasonName(r.Reason)] += r.Count
				sum += r.Count
			}
		}
		// The reasons of a kernel have 16 bits, and its totals 64.
		if v.user && total > sum {
			n[otherReason] += total - sum
		}
		for name, count := range n {
			f(float64(count), side.String(), name)
		}
	}
}

// readPeerDeclines emits the DECLINE messages of peers by side and reason of the peer. Their sum
// is the fallback reason peer_declined.
func readPeerDeclines(v *view, f emit) {
	if v.fallbacks == nil || !v.user {
		return
	}
	for _, side := range []smc.Role{smc.Client, smc.Server} {
		var total, sum uint64
		for _, r := range v.fallbacks.Reasons {
			if r.Side == side && r.Reason == uint32(smc.DiagPeerDeclined) {
				total += r.Count
			}
		}
		n := map[string]uint64{otherReason: 0}
		for _, r := range v.fallbacks.PeerReasons {
			if r.Side == side {
				n[reasonName(r.Reason)] += r.Count
				sum += r.Count
			}
		}
		// A stack of an older release does not have the reasons of peers.
		if total > sum {
			n[otherReason] += total - sum
		}
		for name, count := range n {
			f(float64(count), side.String(), name)
		}
	}
}

// readPorts emits the states of ports.
func readPorts(v *view, f emit) {
	for i := range v.devices {
		for j := range v.devices[i].Ports {
			p := &v.devices[i].Ports[j]
			if !p.Valid {
				continue
			}
			active := 0.0
			if p.Active {
				active = 1
			}
			f(active, v.devices[i].Name, strconv.Itoa(j+1))
		}
	}
}

// ofTimes converts a histogram of durations.
func ofTimes(t *stats.Times) buckets {
	b := buckets{sum: float64(t.Sum) / float64(time.Second), upTo: map[float64]uint64{}}
	for i, n := range t.Counts {
		b.count += n
		if limit := stats.TimeLimit(i); limit > 0 {
			b.upTo[limit.Seconds()] = b.count
		}
	}
	return b
}

// ofSizes converts a histogram of sizes, whose sum is given in bytes.
func ofSizes(h *stats.Histogram, sum uint64) buckets {
	b := buckets{sum: float64(sum), upTo: map[float64]uint64{}}
	for i, n := range h {
		b.count += n
		if limit := stats.BucketLimit(i); limit > 0 {
			b.upTo[float64(limit)] = b.count
		}
	}
	return b
}
