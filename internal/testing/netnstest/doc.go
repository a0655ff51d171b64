// SPDX-License-Identifier: Apache-2.0

// Package netnstest makes hosts on one machine: two network namespaces that are joined by
// veth pairs ([Pair]), or several that are joined by a switch ([LAN]). Tests, benchmarks and
// the demo start programs, run functions and capture packets there.
//
// What every test with real packets needs belongs here: namespaces and links, the rule
// for missing privileges or tools, processes that always end, captures that are always
// complete, and the counting of captured bytes by protocol. Tests do not belong here. The
// package knows nothing of SMC but the ethertype and the TCP option.
//
// The names of namespaces are smcr-PID-N-LETTER, with the process that made them. Close
// removes them with every process in them. If a run is killed, the next run removes its
// namespaces, because their process does not exist any more.
//
// A Pair, a LAN and their Hosts are safe for concurrent use. Making one needs root (CAP_SYS_ADMIN
// and CAP_NET_ADMIN), iproute2's /run/netns layout and nsenter from util-linux.
package netnstest
