// SPDX-License-Identifier: Apache-2.0

// Package verbs is the command smcr verbs: the software RDMA devices of a network
// namespace, and tests of RDMA itself, below SMC, toward this program or toward
// ibv_rc_pingpong and the programs of perftest on RDMA devices of any kind.
//
// Listing needs no privileges, testing needs CAP_NET_RAW. A test opens the device
// for itself; it shares nothing with the stack of smcr serve.
package verbs
