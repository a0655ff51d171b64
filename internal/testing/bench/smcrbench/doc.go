// SPDX-License-Identifier: Apache-2.0

// Smcrbench compares SMC-R in user space with kernel TCP. It makes two hosts
// joined by a veth pair and runs real programs (iperf3, qperf, redis, nginx
// and wrk) and its own load program over both transports in turn, several rounds, and
// prints medians, spreads and ratios. Absolute figures depend on the machine;
// the ratios are what counts, and each is that of one round: what TCP did a
// moment before is the measure of what SMC-R does.
//
// The programs are unmodified; those over SMC-R run under 'smcr run', with
// 'smcr serve' on both hosts. The rows of the Go API embed a stack instead. A
// measurement over SMC-R whose connections were not all SMC-R is an error.
//
// CPU is the time of all processes of a measurement on both hosts, stacks and
// launchers included, as the kernel charges them. Memory of a connection is a
// slope: what 300 connections more need, divided by 300, without what the
// programs themselves need over TCP.
//
// The sweep of connections goes as far as -max-connections, on further pairs of
// hosts where the limit of open files does not allow one pair so many.
//
// A measurement that others disturbed is repeated, and the bench refuses to go
// on where that does not help; -force overrides. -rows selects rows and sweeps,
// -serve-flags passes flags to 'smcr serve', so that two ways can be compared.
// What a whole run found is written into bench/results.
//
// `make bench` runs it. Needs root and the programs of `make bench-tools`.
package main
