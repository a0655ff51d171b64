// SPDX-License-Identifier: Apache-2.0

// Package userstack is a complete SMC-R stack in user space: it moves TCP
// connections onto RDMA writes as RFC 7609 describes, over any
// [rdmaverbs.Provider], where the kernel has no AF_SMC.
//
// A [Stack] serves one network namespace. [Stack.Dial] and [Stack.Listen]
// give net.Conn and net.Listener; [Stack.Client] and [Stack.Server] run the
// rendezvous on a TCP connection that the caller already has. A connection
// that cannot use SMC-R continues as TCP, as RFC 7609 asks.
//
// The protocol itself is in package linkgroup, which does no I/O. This
// package is its driver: it owns queue pairs, memory, timers and goroutines.
// One lock guards each link group's core; what the core wants done is
// executed outside that lock, by one goroutine at a time, in order.
//
// All exported methods are safe for concurrent use. Software RoCE needs
// CAP_NET_RAW, the TCP option CAP_BPF and CAP_NET_ADMIN.
package userstack
