// SPDX-License-Identifier: Apache-2.0

// Package perftest speaks to the bandwidth and latency programs of perftest
// (ib_write_bw, ib_write_lat, ib_send_bw, ib_send_lat, ib_read_bw, ib_read_lat),
// version 5.70 and later, in either role, and measures what they measure.
//
// Both sides talk over a TCP connection: versions, buffer and path sizes, then,
// several times over, their queue pairs as text; that repeated exchange is also
// the barrier between the steps of a test. exchange.go is that conversation,
// bandwidth.go and latency.go are the tests.
package perftest
