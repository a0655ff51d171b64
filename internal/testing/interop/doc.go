// SPDX-License-Identifier: Apache-2.0

// Package interop tests the user-space stack against the SMC of a Linux kernel. In
// one guest (package guest), the kernel's SMC and soft-RoCE are in the initial
// network namespace, and smcr serve is in another network namespace on the same
// LAN. It has tests only; program programs/peer makes the connections of both
// sides.
//
// No privileges are needed. The tests are skipped where guests cannot be booted.
package interop
