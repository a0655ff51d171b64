// SPDX-License-Identifier: Apache-2.0

// Package netnstest makes two hosts out of one: two network namespaces joined
// by veth pairs, in which tests, benchmarks and the demo start programs, run
// functions and capture packets.
//
// What belongs here is what every test with real packets needs and no test
// wants to write again: namespaces and links, the rule for missing privileges
// or tools, processes that surely end, captures that are surely complete, and
// the counting of captured bytes by protocol. What is tested does not belong
// here; the package knows nothing of SMC but the ethertype.
//
// Namespaces are named smcr-PID-N-{a,b} after the process that made them.
// Close removes them together with every process left inside; what a killed
// run left behind is found by its dead process id and removed by the next.
//
// A Pair and its Hosts are safe for concurrent use. Making one needs root
// (CAP_SYS_ADMIN and CAP_NET_ADMIN), iproute2's /run/netns layout and
// nsenter from util-linux.
package netnstest
