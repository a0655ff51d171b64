// SPDX-License-Identifier: Apache-2.0

// Package pnet has the physical network identifiers (pnetids): their form, the table
// that assigns them to network devices and RoCE ports, and the RoCE ports that serve a
// network device because of them.
//
// The table returns the same errors as the kernel's generic netlink family SMC_PNETID.
// But it adds an entry for two devices completely or not at all.
//
// The package does no I/O and imports nothing of this module. A [Table] is safe for
// concurrent use. No privileges are needed.
package pnet
