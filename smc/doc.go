// SPDX-License-Identifier: Apache-2.0

// Package smc has the terms of SMC that all other packages share: addresses and
// identifiers (GID, MAC, peer ID, queue pair number, RKey), codes (path MTU, size
// of an RMB element, operating system, diagnosis), and the roles, types and states
// of link groups, links and connections. Each has one type and one text form,
// which listings, logs and errors all print.
//
// The package has no behaviour beyond parsing and printing. How a term is encoded
// in a message is said in package userstack/wire, how netlink carries it in package
// nl. Numbers are those of RFC 7609, of the InfiniBand specification or, where
// neither has them, of the Linux UAPI; each type says which.
package smc
