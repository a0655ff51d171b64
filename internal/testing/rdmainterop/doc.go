// SPDX-License-Identifier: Apache-2.0

// Package rdmainterop tests the software RoCE of this module against that of the
// kernel, below SMC: programs of ibverbs-utils and perftest on the kernel's rxe at
// one end of a veth pair, smcr verbs at the other end. It has tests only.
//
// Needs QEMU, ibverbs-utils and perftest; see scripts/setup-test-tools.
package rdmainterop
