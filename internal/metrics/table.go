// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strconv"

	"smcr/nl"
	"smcr/smc"
	"smcr/stats"

	"github.com/prometheus/client_golang/prometheus"
)

// namespace begins all names.
const namespace = "smcr"

// emit adds a series with the values of the labels after the label stack.
type emit func(value float64, labels ...string)

// A family is a metric with all its series.
type family struct {
	name   string // without the namespace
	help   string
	kind   prometheus.ValueType
	labels []string // besides stack
	read   func(*view, emit)
	// histogram replaces kind and read.
	histogram func(*view, func(buckets, ...string))
}

// buckets are the values of a histogram.
type buckets struct {
	count uint64
	sum   float64
	upTo  map[float64]uint64 // cumulative, without +Inf
}

// The two directions of data.
const (
	receive = "receive"
	send    = "send"
)

// sides calls f for both sides with the values of a counter.
func sides(client, server uint64, f emit) {
	f(float64(client), smc.Client.String())
	f(float64(server), smc.Server.String())
}

// families are all metrics of a stack, in the order of docs/monitoring.md.
var families = []family{
	{
		name: "stack_info", kind: prometheus.GaugeValue, labels: []string{"implementation", "version", "smc_version"},
		help: "The stack: its implementation (kernel or smcr), the version of that, and the version of SMC. The value is 1.",
		read: func(v *view, f emit) {
			implementation, version := "kernel", ""
			if v.user {
				implementation, version = v.info.Stack, v.info.StackVersion
			}
			f(1, implementation, version, fmt.Sprintf("%d.%d", v.info.Version, v.info.Release))
		},
	},
	{
		name: "link_groups", kind: prometheus.GaugeValue, labels: []string{"type"},
		help: "Link groups by type: none (no active link), single (one link), symmetric, asymmetric_local, asymmetric_peer, other.",
		read: func(v *view, f emit) {
			count(v.groups, func(i int) string { return nameOf(groupTypes, v.groups[i].Type) }, groupTypes, f)
		},
	},
	{
		name: "links", kind: prometheus.GaugeValue, labels: []string{"state"},
		help: "Links by state: unused, inactive, activating, active, other.",
		read: func(v *view, f emit) {
			count(v.links, func(i int) string { return nameOf(linkStates, v.links[i].State) }, linkStates, f)
		},
	},
	{
		name: "connections", kind: prometheus.GaugeValue,
		help: "Open SMC-R connections.",
		read: func(v *view, f emit) {
			var n float64
			for i := range v.groups {
				n += float64(v.groups[i].Conns)
			}
			f(n)
		},
	},
	{
		name: "connections_opened_total", kind: prometheus.CounterValue, labels: []string{"side", "version"},
		help: "SMC-R connections by side of this host (client, server) and version of SMC.",
		read: withTech(func(t *stats.Tech, f emit) {
			f(float64(t.ClientV1), "client", "1")
			f(float64(t.ClientV2), "client", "2")
			f(float64(t.ServerV1), "server", "1")
			f(float64(t.ServerV2), "server", "2")
		}),
	},
	{
		name: "fallbacks_total", kind: prometheus.CounterValue, labels: []string{"side", "reason"},
		help: "Connections that became plain TCP, by side and reason; peer_declined is a DECLINE of the peer, and the reasons of kernels wrap at 65536.",
		read: readFallbacks,
	},
	{
		name: "peer_declines_total", kind: prometheus.CounterValue, labels: []string{"side", "reason"},
		help: "Connections that became plain TCP because the peer declined SMC, by side of this host and the reason of the peer.",
		read: readPeerDeclines,
	},
	{
		name: "handshake_errors_total", kind: prometheus.CounterValue, labels: []string{"side"},
		help: "Handshakes that failed and ended the connection, by side.",
		read: withStats(func(s *stats.Stats, f emit) { sides(s.ClientHandshakeErrors, s.ServerHandshakeErrors, f) }),
	},
	{
		name: "handshake_duration_seconds", labels: []string{"side"},
		help: "Time from the TCP connection to the SMC-R connection, by side.",
		histogram: func(v *view, f func(buckets, ...string)) {
			if v.user && v.stats != nil {
				f(ofTimes(&v.stats.ClientHandshakeTimes), "client")
				f(ofTimes(&v.stats.ServerHandshakeTimes), "server")
			}
		},
	},
	{
		name: "failovers_total", kind: prometheus.CounterValue,
		help: "Connections that were moved to another link because their link had failed.",
		read: ofUser(func(s *stats.Stats, f emit) { f(float64(s.Failovers)) }),
	},
	{
		name: "bytes_total", kind: prometheus.CounterValue, labels: []string{"direction"},
		help: "Bytes that programs have received and sent over SMC-R.",
		read: withTech(func(t *stats.Tech, f emit) {
			f(float64(t.RXBytes), receive)
			f(float64(t.TXBytes), send)
		}),
	},
	{
		name: "requests_total", kind: prometheus.CounterValue, labels: []string{"direction"},
		help: "Requests to receive and to send, with those that failed.",
		read: withTech(func(t *stats.Tech, f emit) {
			f(float64(t.RXCalls), receive)
			f(float64(t.TXCalls), send)
		}),
	},
	{
		name: "request_size_bytes", labels: []string{"direction"},
		help: "Sizes of the requests that moved data; the sum has the bytes that were moved.",
		histogram: func(v *view, f func(buckets, ...string)) {
			if v.stats != nil {
				f(ofSizes(&v.stats.SMCR.RXSizes, v.stats.SMCR.RXBytes), receive)
				f(ofSizes(&v.stats.SMCR.TXSizes, v.stats.SMCR.TXBytes), send)
			}
		},
	},
	{
		name: "socket_calls_total", kind: prometheus.CounterValue, labels: []string{"call"},
		help: "Special socket calls: cork, nodelay, sendpage, splice, urgent.",
		read: withTech(readCalls),
	},
	{
		name: "buffers_assigned_total", kind: prometheus.CounterValue, labels: []string{"direction", "size_class"},
		help: "Buffers that connections got, by size: size_class is the largest size in bytes of the class.",
		read: withTech(func(t *stats.Tech, f emit) {
			for i := range stats.Buckets {
				class := "+Inf"
				if limit := stats.BucketLimit(i); limit > 0 {
					class = strconv.Itoa(limit)
				}
				f(float64(t.RXBufSizes[i]), receive, class)
				f(float64(t.TXBufSizes[i]), send, class)
			}
		}),
	},
	buffers("buffer_allocations_total", "Buffers that were newly allocated.", func(b *stats.Buffers) uint64 { return b.Alloc }, 0, 0),
	buffers("buffer_reuses_total", "Buffers that were used again.", func(b *stats.Buffers) uint64 { return b.Reuse }, 0, 0),
	buffers("buffer_downgrades_total", "Buffers that are smaller than wanted, for lack of memory.", func(b *stats.Buffers) uint64 { return b.Downgrade }, 0, 0),
	buffers("buffer_full_total", "How often a request found the receive buffer full, or waited for room in the send buffer.",
		func(b *stats.Buffers) uint64 { return b.Full }, 0, 0),
	buffers("buffer_too_small_total", "Requests that are larger than the whole buffer.",
		func(b *stats.Buffers) uint64 { return b.Small }, stats.CountRXSmall, stats.CountTXSmall),
	{
		name: "peer_buffer_full_total", kind: prometheus.CounterValue,
		help: "How often data had to wait because the receive buffer of the peer was full.",
		read: withTech(func(t *stats.Tech, f emit) { f(float64(t.TXBufs.FullPeer)) }),
	},
	{
		name: "buffer_usage_bytes", kind: prometheus.GaugeValue, labels: []string{"direction"},
		help: "Size of the buffers that connections use.",
		read: withTech(func(t *stats.Tech, f emit) {
			if t.Counts(stats.CountRXUsage) {
				f(float64(t.RXUsage), receive)
			}
			if t.Counts(stats.CountTXUsage) {
				f(float64(t.TXUsage), send)
			}
		}),
	},
	{
		name: "link_group_memory_bytes", kind: prometheus.GaugeValue, labels: []string{"direction"},
		help: "Memory that link groups have allocated for buffers, used or not.",
		read: func(v *view, f emit) {
			var rx, tx float64
			for i := range v.groups {
				rx, tx = rx+float64(v.groups[i].RMB), tx+float64(v.groups[i].Sndbuf)
			}
			f(rx, receive)
			f(tx, send)
		},
	},
	{
		name: "device_link_groups", kind: prometheus.GaugeValue, labels: []string{"device"},
		help: "Link groups that use a RoCE device.",
		read: func(v *view, f emit) {
			for i := range v.devices {
				f(float64(v.devices[i].UseCount), v.devices[i].Name)
			}
		},
	},
	{
		name: "device_port_active", kind: prometheus.GaugeValue, labels: []string{"device", "port"},
		help: "Whether a port of a RoCE device can carry links: 1 if it can, otherwise 0.",
		read: readPorts,
	},
	{
		name: "retransmitted_packets_total", kind: prometheus.CounterValue, labels: []string{"device"},
		help: "RoCE packets that a device has sent again, because packets were lost or the peer was late.",
		read: ofResent(func(r *nl.Resent) uint64 { return r.Packets }),
	},
	{
		name: "acknowledgement_timeouts_total", kind: prometheus.CounterValue, labels: []string{"device"},
		help: "How often a device got no answer to RoCE packets in time.",
		read: ofResent(func(r *nl.Resent) uint64 { return r.Timeouts }),
	},
	{
		name: "refused_packets_total", kind: prometheus.CounterValue, labels: []string{"device", "reason"},
		help: "RoCE packets that a device has refused, because they were not from the peer (source, psn) or the peer had no right to what they ask for (key).",
		read: ofDevices(func(d *device, f emit) {
			f(float64(d.Refused.Source), d.Name, "source")
			f(float64(d.Refused.PSN), d.Name, "psn")
			f(float64(d.Refused.Key), d.Name, "key")
		}),
	},
	{
		name: "engine_threads", kind: prometheus.GaugeValue,
		help: "Event loops of the stack, each of which is a thread.",
		read: ofUser(func(s *stats.Stats, f emit) { f(float64(s.Engine.Threads)) }),
	},
	{
		name: "engine_cpu_seconds_total", kind: prometheus.CounterValue,
		help: "CPU time of the event loops, with the time for which they look for more work before they sleep.",
		read: ofUser(func(s *stats.Stats, f emit) { f(float64(s.Engine.CPU) / 1e9) }),
	},
	{
		name: "engine_rounds_total", kind: prometheus.CounterValue,
		help: "Rounds in which an event loop found something to do.",
		read: ofUser(func(s *stats.Stats, f emit) { f(float64(s.Engine.Rounds)) }),
	},
	{
		name: "engine_sleeps_total", kind: prometheus.CounterValue,
		help: "How often an event loop found nothing to do, and slept.",
		read: ofUser(func(s *stats.Stats, f emit) { f(float64(s.Engine.Sleeps)) }),
	},
	{
		name: "panics_total", kind: prometheus.CounterValue,
		help: "Internal errors that ended a connection, a session or a link group, but not the stack.",
		read: ofUser(func(s *stats.Stats, f emit) { f(float64(s.Panics)) }),
	},
}
