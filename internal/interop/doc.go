// SPDX-License-Identifier: Apache-2.0

// Package interop tests the user-space stack against the SMC of a real Linux
// kernel: in one guest (package guest) a LAN has the kernel's SMC and soft-RoCE
// in the initial network namespace on it, and smcr serve in another network
// namespace. Nothing belongs here but tests and the program peer, which makes
// the connections of both sides.
//
// No privilege is needed; the tests skip where guests cannot be booted.
package interop
