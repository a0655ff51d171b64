// SPDX-License-Identifier: Apache-2.0

// Package exporter implements the command smcr exporter: a process without rights that shows
// the SMC stacks of a network namespace, that of the kernel too, to Prometheus. What it shows
// is in package metrics, the HTTP server in httpserver.
package exporter
