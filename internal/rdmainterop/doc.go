// SPDX-License-Identifier: Apache-2.0

// Package rdmainterop tests the software RoCE of this module against the
// kernel's, below SMC: the RDMA world's own test programs on the kernel's rxe at
// one end of a veth pair, smcr verbs at the other. It has no other code.
//
// Needs QEMU, ibverbs-utils and perftest; see scripts/setup-test-tools.
package rdmainterop
