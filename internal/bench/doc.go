// SPDX-License-Identifier: Apache-2.0

// Package bench holds what the benchmarks need to know beside the running of
// programs: the measures, their medians and ratios, and the tables. Program
// load (internal/bench/load) makes the traffic, program smcrbench
// (internal/bench/smcrbench) runs it in turn over kernel TCP and under `smcr run`
// on the same two hosts. Program listbench (internal/bench/listbench) measures the
// listings; `make bench` runs these. Program rdmabench (internal/bench/rdmabench)
// measures the software RoCE beside the kernel's; `make bench-rdma` runs it. Program
// apibench (internal/bench/apibench) compares a stack embedded in a Go program with
// package net.
//
// It is no substitute for the Go benchmarks beside the code, which find out
// why a figure is what it is. Not safe for concurrent use. No privileges.
package bench
