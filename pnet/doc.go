// SPDX-License-Identifier: Apache-2.0

// Package pnet knows physical network identifiers (pnetids): how they are
// spelt, the table that gives them to network devices and RoCE ports, and which
// RoCE ports serve a network device because of them.
//
// The table behaves like the kernel's generic netlink family SMC_PNETID where
// errors are concerned, but an addition is stored whole or not at all.
//
// The package is a leaf: no I/O, nothing imported from this module. A [Table]
// is safe for concurrent use. No privileges are needed.
package pnet
