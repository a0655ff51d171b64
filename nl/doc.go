// SPDX-License-Identifier: Apache-2.0

// Package nl is the control layer of SMC on Linux: it speaks the kernel's
// generic netlink families SMC_GEN_NETLINK and SMC_PNETID and the SMC part of
// NETLINK_SOCK_DIAG, as client and as server.
//
// [Control] is the seam of the module. [Client] implements it over any netlink
// transport: AF_NETLINK for the kernel's stack, or netlink over a unix
// sequenced-packet socket for a stack in user space. [Server] is the inverse of
// Client: it answers the same messages out of any Control, so that
// Client(Server(x)) behaves as x does.
//
// What a user-space stack knows beyond the kernel travels in attributes numbered
// from [OwnAttributes]; others ignore them.
//
// All types are safe for concurrent use unless they say otherwise. Reading needs
// no privilege. Changing needs CAP_NET_ADMIN for the kernel, and root or the
// owner of the stack for a stack in user space.
package nl
