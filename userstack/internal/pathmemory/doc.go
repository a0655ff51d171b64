// SPDX-License-Identifier: Apache-2.0

// Package pathmemory remembers on which ways RoCE does not pass although TCP does: a firewall
// without UDP port 4791, a cloud network, an MTU that is too small on the way. Each first
// contact over such a way costs a wait, so the connections of all programs stay TCP there,
// and one of them tries SMC-R again from time to time.
//
// A [Memory] is a table and nothing else: it reads no clock and takes no lock. A [Path] is the
// netdev of this host and the two addresses of the TCP connection. TCP has proved the peer's,
// so what a host does has no effect on the paths to other hosts; and nothing that
// arrives over RoCE is asked.
package pathmemory
