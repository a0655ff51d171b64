// SPDX-License-Identifier: Apache-2.0

// Apibench compares package userstack, embedded in a Go program, with kernel TCP
// (package net): it makes two hosts joined by one veth pair and runs the same
// client and server on them over both transports in turn, several rounds, and
// prints medians, spreads and ratios.
//
// Throughput is writes of -block bytes on one connection, round trip is one byte
// each way. Throughput without copies is the same with Reserve and Commit on one
// side, Peek and Discard on the other; kernel TCP beside it is that of Write and
// Read. Needs root and nsenter.
//
//	go run ./internal/bench/apibench -mtu 9000
package main
