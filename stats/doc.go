// SPDX-License-Identifier: Apache-2.0

// Package stats holds the counters of an SMC stack: the set that the Linux
// kernel keeps (SMC_GEN_NETLINK commands GET_STATS and GET_FBACK_STATS), a
// collector that a data path can feed without locks, and the arithmetic on
// snapshots: differences and rates.
//
// The package is a leaf: it performs no I/O, reads no clock and imports nothing
// of this module. Snapshots are plain values. A [Collector] is safe for
// concurrent use. No privileges are needed.
package stats
