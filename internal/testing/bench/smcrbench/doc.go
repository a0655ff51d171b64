// SPDX-License-Identifier: Apache-2.0

// Smcrbench compares SMC-R in user space with kernel TCP. It makes two hosts joined by a
// veth pair. It runs real programs (iperf3, qperf, redis, nginx and wrk) and its load
// program over both transports in turn, in several rounds, and prints medians, spreads
// and ratios. Absolute values depend on the machine, so the ratios are important. Each
// ratio is that of one round: SMC-R is compared with what TCP reached a moment before.
//
// The programs are not modified. Over SMC-R they run under 'smcr run', with 'smcr serve'
// on both hosts. The rows of the Go API embed a stack instead. A measurement over SMC-R
// is an error if not all connections used SMC-R.
//
// CPU is the time of all processes of a measurement on both hosts, with stacks, as the kernel counts it. A second table
// has it for one unit of work of each row: a GiB, a request, a connection. Memory of a connection is a slope: what 300 more
// connections need, divided by 300, without what the programs need over TCP.
//
// -against FILE measures another build of smcr in turn with the first, on hosts of its own, so that what a change costs is seen
// whatever the machine does meanwhile. The two change places from round to round.
//
// The sweep of connections goes up to -max-connections. If the limit of open files is too
// small for one pair of hosts, it uses more pairs.
//
// A measurement that others disturbed is repeated. If that does not help, the program
// ends, unless -force is given. -rows selects rows and sweeps. -serve-flags passes flags
// to 'smcr serve', so that two settings can be compared. The result of a whole run is
// written to bench/results.
//
// `make bench` runs it. It needs root and the programs of `make bench-tools`.
package main
