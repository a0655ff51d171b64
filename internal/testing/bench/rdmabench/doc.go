// SPDX-License-Identifier: Apache-2.0

// Rdmabench compares the software RoCE of smcr with rxe, that of the kernel, below SMC:
// in one guest, each between the two ends of a veth pair, with the same operations and
// sizes in turn, round by round. rxe is measured by the programs of perftest, smcr by
// smcr verbs perf, which uses the same protocol.
//
// rxe exists only in the initial network namespace, so both its devices are there.
// Routing rules send the packets from one end to the other over the wire instead of the
// loopback device. It needs QEMU and perftest, but no privileges.
package main
