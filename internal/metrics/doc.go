// SPDX-License-Identifier: Apache-2.0

// Package metrics shows SMC stacks to Prometheus. A scrape asks each stack, of the kernel or
// in user space, through nl.Control, so the numbers are those of smcr stats, smcr linkgroup
// list, smcr link list and smcr device list. [Handler] is the HTTP handler; which stacks a
// scrape asks, and who listens, is up to the caller.
//
// Names, units and types follow the conventions of Prometheus. docs/monitoring.md lists all
// metrics (TestDocumented). This is the only package that imports the library of Prometheus.
//
// # Limits
//
// No label has a value that a peer, a user or a program has chosen: reasons come from a fixed
// table, and devices from this host, up to a number. No scrape lists connections. A scrape ends
// after a fixed time, and a few may run at once.
package metrics
