// SPDX-License-Identifier: Apache-2.0

// Rdmabench measures the software RoCE of smcr beside the kernel's, rxe, below
// SMC: in one guest, each between the two ends of a veth pair, the same
// operations and sizes in turn, round by round. rxe is measured by the programs
// of perftest, smcr by smcr verbs perf, which speaks their protocol.
//
// rxe lives in the initial network namespace only, so both its devices are
// there: routing rules send what leaves one end to the other over the wire
// instead of the loopback device. Needs QEMU and perftest, no privileges.
package main
