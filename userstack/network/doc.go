// SPDX-License-Identifier: Apache-2.0

// Package network is what a stack asks its host: routes, addresses, netdevs,
// IPsec policies, TCP sockets, the network namespace, and the marking of sockets
// for the TCP option of SMC.
//
// [Network] and [OptionMarker] are the questions. [Namespace] answers the first
// for the network namespace of a thread, by rtnetlink, xfrm and sock_diag;
// [NewOptionMarker] answers the second by the eBPF program of package tcpopt.
// Tests and simulations answer both themselves.
//
// Only questions about the host belong here. What follows from the answers, such
// as which RoCE devices serve a connection or why it stays TCP, does not. The
// package knows neither RDMA devices nor SMC messages.
//
// All functions and methods are safe for concurrent use. [Namespace] needs no
// privilege; without CAP_NET_ADMIN it knows of no IPsec policies.
package network
