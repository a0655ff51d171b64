// SPDX-License-Identifier: Apache-2.0

// Package bench holds what the benchmarks need to know beside the running of
// programs: the rows of the table with their targets, medians and ratios, what
// the programs print, the CPU time of processes (and of others, who disturb a
// measurement), results in JSON, and the tables.
//
// Program smcrbench (internal/testing/bench/smcrbench) runs real programs, and program
// load (internal/testing/programs/load), in turn over kernel TCP and SMC-R on the same two
// hosts. Program listbench (internal/testing/bench/listbench) measures the listings;
// `make bench` runs both. Module plots (internal/testing/bench/plots) draws a result for
// docs/performance.md; `make bench-plots` runs it. Program rdmabench
// (internal/testing/bench/rdmabench) measures the software RoCE beside the kernel's; `make
// bench-rdma` runs it.
//
// It is no substitute for the Go benchmarks beside the code, which find out
// why a figure is what it is. Not safe for concurrent use. No privileges but
// those to read /proc.
package bench
