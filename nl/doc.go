// SPDX-License-Identifier: Apache-2.0

// Package nl is the control layer of SMC on Linux. It has a client and a server for the
// kernel's generic netlink families SMC_GEN_NETLINK and SMC_PNETID and for the SMC part
// of NETLINK_SOCK_DIAG.
//
// [Control] is the interface between commands and stacks. [Client] implements it over a
// netlink transport: AF_NETLINK for the kernel's stack, or netlink messages over a unix
// sequenced-packet socket for a stack in user space. [Server] is the inverse of Client: it
// answers the same messages with the data of any Control. So Client(Server(x)) behaves as
// x does.
//
// Information that only a stack in user space has is in attributes whose numbers begin
// with [OwnAttributes]. Other programs ignore these.
//
// All types are safe for concurrent use unless their comments say otherwise. Reading needs
// no privilege. Changing the kernel's stack needs CAP_NET_ADMIN. A stack in user space
// lets root and its own user change it.
package nl
