// SPDX-License-Identifier: Apache-2.0

// Smcrbench compares SMC-R in user space with kernel TCP: it makes two hosts
// joined by one veth pair, runs the same static program over both transports
// in turn, several rounds, and prints medians, spreads and ratios. Absolute
// figures depend on the machine; the ratios are what counts.
//
// Throughput is writes of 1 MiB on one connection; round trip is one byte each
// way; connections are made one after the other. CPU is the time of all
// processes on both hosts, as the kernel charges them. Memory is what these
// processes grow by (resident); memory inside the kernel is not in it.
//
// `make bench` runs it. Needs root and nsenter.
package main
