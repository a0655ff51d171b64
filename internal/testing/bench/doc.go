// SPDX-License-Identifier: Apache-2.0

// Package bench has what the benchmarks need besides running programs: the rows of the
// table with their targets, medians and ratios, parsers for the output of programs, the
// CPU time of processes (also of others, which disturb a measurement), results in JSON,
// and tables.
//
// Program smcrbench (internal/testing/bench/smcrbench) runs real programs, and program
// load (internal/testing/programs/load), in turn over kernel TCP and SMC-R on the same
// two hosts. Program listbench (internal/testing/bench/listbench) measures the listings;
// `make bench` runs both. Module plots (internal/testing/bench/plots) draws a result for
// docs/performance.md; `make bench-plots` runs it. Program rdmabench
// (internal/testing/bench/rdmabench) compares software RoCE with that of the kernel;
// `make bench-rdma` runs it.
//
// The Go benchmarks beside the code show why a value is as it is; they do not belong
// here. The package is not safe for concurrent use. It needs no privileges except to read
// /proc.
package bench
