// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"fmt"

	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
)

// A statsJSON is the counters of a stack in JSON.
type statsJSON struct {
	Stack           string        `json:"stack"`
	SMCR            techJSON      `json:"smcr"`
	SMCD            techJSON      `json:"smcd"`
	HandshakeErrors sidesJSON     `json:"handshake_errors"`
	Fallbacks       fallbacksJSON `json:"fallbacks"`
	Panics          *uint64       `json:"panics,omitempty"` // only user-space stacks

	// Only user-space stacks have the following fields.
	Failovers      *uint64         `json:"failovers,omitempty"`
	HandshakeTimes *sidesTimesJSON `json:"handshake_times,omitempty"`
	Engine         *engineJSON     `json:"engine,omitempty"`
	Resent         *resentJSON     `json:"resent,omitempty"`
}

type sidesTimesJSON struct {
	Client timesJSON `json:"client"`
	Server timesJSON `json:"server"`
}

// A timesJSON is durations by class.
type timesJSON struct {
	Sum     uint64           `json:"sum_ns"`
	Classes []timeBucketJSON `json:"classes"`
}

// A timeBucketJSON is a class of durations; the last has no limit.
type timeBucketJSON struct {
	Limit int64  `json:"up_to_ns,omitempty"`
	Count uint64 `json:"count"`
}

// An engineJSON is what the event loops have done.
type engineJSON struct {
	Threads uint64 `json:"threads"`
	CPU     uint64 `json:"cpu_ns"`
	Rounds  uint64 `json:"rounds"`
	Sleeps  uint64 `json:"sleeps"`
}

type sidesJSON struct {
	Client uint64 `json:"client"`
	Server uint64 `json:"server"`
}

type fallbacksJSON struct {
	Client  uint64       `json:"client"`
	Server  uint64       `json:"server"`
	Reasons []reasonJSON `json:"reasons"`
	// PeerReasons are the reasons that peers gave for declining: null if the stack does not
	// count them.
	PeerReasons []reasonJSON `json:"peer_reasons"`
}

type reasonJSON struct {
	Side   string `json:"side"`
	Reason string `json:"reason"`
	Name   string `json:"name,omitempty"`
	Text   string `json:"text,omitempty"`
	Count  uint64 `json:"count"`
}

type techJSON struct {
	Connections uint64        `json:"connections"`
	ClientV1    uint64        `json:"client_v1"`
	ClientV2    uint64        `json:"client_v2"`
	ServerV1    uint64        `json:"server_v1"`
	ServerV2    uint64        `json:"server_v2"`
	RX          directionJSON `json:"rx"`
	TX          directionJSON `json:"tx"`
	Sendpage    *uint64       `json:"sendpage_calls"`
	Splice      *uint64       `json:"splice_calls"`
	Cork        uint64        `json:"cork_calls"`
	NoDelay     uint64        `json:"nodelay_calls"`
	Urgent      uint64        `json:"urgent_calls"`
}

type directionJSON struct {
	Bytes       uint64       `json:"bytes"`
	Calls       uint64       `json:"calls"`
	BufferUsage *uint64      `json:"buffer_bytes"`
	Buffers     buffersJSON  `json:"buffers"`
	BufferSizes []bucketJSON `json:"buffer_sizes"`
	CallSizes   []bucketJSON `json:"call_sizes"`
}

// The numbers that are pointers are null if the stack does not count them, here as
// in techJSON and directionJSON.
type buffersJSON struct {
	Alloc     uint64  `json:"alloc"`
	Reuse     uint64  `json:"reuse"`
	Downgrade uint64  `json:"downgrade"`
	Full      uint64  `json:"full"`
	FullPeer  *uint64 `json:"full_peer"`
	Small     *uint64 `json:"small"`
	SmallPeer *uint64 `json:"small_peer"`
}

// A bucketJSON is a class of a histogram; the last has no limit.
type bucketJSON struct {
	Limit int    `json:"up_to_bytes,omitempty"`
	Count uint64 `json:"count"`
}

func newStatsJSON(r nl.Row[counters]) statsJSON {
	s, f := &r.Value.stats, &r.Value.fallbacks
	j := statsJSON{
		Stack: r.Stack, SMCR: newTechJSON(&s.SMCR), SMCD: newTechJSON(&s.SMCD),
		HandshakeErrors: sidesJSON{s.ClientHandshakeErrors, s.ServerHandshakeErrors},
		Fallbacks:       fallbacksJSON{Client: f.ClientTotal, Server: f.ServerTotal, Reasons: []reasonJSON{}},
	}
	if r.Stack != "kernel" {
		j.Panics = &s.Panics
		j.Failovers = &s.Failovers
		j.HandshakeTimes = &sidesTimesJSON{newTimesJSON(&s.ClientHandshakeTimes), newTimesJSON(&s.ServerHandshakeTimes)}
		engine := engineJSON(s.Engine)
		j.Engine = &engine
		j.Fallbacks.PeerReasons = []reasonJSON{}
	}
	if x := r.Value.resent; x != nil {
		j.Resent = &resentJSON{x.Packets, x.Timeouts}
	}
	for _, x := range f.Reasons {
		j.Fallbacks.Reasons = append(j.Fallbacks.Reasons, newReasonJSON(x))
	}
	for _, x := range f.PeerReasons {
		r := newReasonJSON(x)
		if x.Reason == 0 {
			r.Name, r.Text = otherCodes, otherCodesText
		}
		j.Fallbacks.PeerReasons = append(j.Fallbacks.PeerReasons, r)
	}
	return j
}

func newReasonJSON(x nl.Fallback) reasonJSON {
	return reasonJSON{
		x.Side.String(), fmt.Sprintf("0x%08x", x.Reason), reasons.Name(smc.Diagnosis(x.Reason)), smc.Diagnosis(x.Reason).Text(), x.Count,
	}
}

func newTimesJSON(t *stats.Times) timesJSON {
	j := timesJSON{Sum: t.Sum, Classes: make([]timeBucketJSON, len(t.Counts))}
	for i, n := range t.Counts {
		j.Classes[i] = timeBucketJSON{stats.TimeLimit(i).Nanoseconds(), n}
	}
	return j
}

func newTechJSON(t *stats.Tech) techJSON {
	opt := func(c stats.Counters, v uint64) *uint64 {
		if !t.Counts(c) {
			return nil
		}
		return &v
	}
	rx, tx := &t.RXBufs, &t.TXBufs
	return techJSON{
		Connections: t.Connections(),
		ClientV1:    t.ClientV1, ClientV2: t.ClientV2, ServerV1: t.ServerV1, ServerV2: t.ServerV2,
		RX: directionJSON{
			Bytes: t.RXBytes, Calls: t.RXCalls, BufferUsage: opt(stats.CountRXUsage, t.RXUsage),
			Buffers: buffersJSON{
				Alloc: rx.Alloc, Reuse: rx.Reuse, Downgrade: rx.Downgrade, Full: rx.Full, FullPeer: opt(stats.CountRXFullPeer, rx.FullPeer),
				Small: opt(stats.CountRXSmall, rx.Small), SmallPeer: opt(stats.CountRXSmallPeer, rx.SmallPeer),
			},
			BufferSizes: buckets(t.RXBufSizes), CallSizes: buckets(t.RXSizes),
		},
		TX: directionJSON{
			Bytes: t.TXBytes, Calls: t.TXCalls, BufferUsage: opt(stats.CountTXUsage, t.TXUsage),
			Buffers: buffersJSON{
				Alloc: tx.Alloc, Reuse: tx.Reuse, Downgrade: tx.Downgrade, Full: tx.Full, FullPeer: &tx.FullPeer,
				Small: opt(stats.CountTXSmall, tx.Small), SmallPeer: opt(stats.CountTXSmallPeer, tx.SmallPeer),
			},
			BufferSizes: buckets(t.TXBufSizes), CallSizes: buckets(t.TXSizes),
		},
		Sendpage: opt(stats.CountSendpage, t.Sendpage), Splice: opt(stats.CountSplice, t.Splice),
		Cork: t.Cork, NoDelay: t.NoDelay, Urgent: t.Urgent,
	}
}

func buckets(h stats.Histogram) []bucketJSON {
	s := make([]bucketJSON, len(h))
	for i, n := range h {
		s[i] = bucketJSON{stats.BucketLimit(i), n}
	}
	return s
}
