// SPDX-License-Identifier: Apache-2.0

// Memorybench measures the memory that connections cost the stacks of both
// hosts and the launchers of the programs. It makes two hosts joined by one veth
// pair, each with a stack, and holds connections of an ordinary static program
// that uses each of them once.
//
// The slope is what one connection more costs: the difference between two
// numbers of connections. It is measured on fresh stacks, and on stacks whose
// buffers earlier connections have used. The rest is what stays after a burst of
// connections has gone.
//
// Memory is what the kernel counts as resident, each page divided among the
// processes that share it (PSS). Memory inside the kernel is not in it, nor is
// that of the programs.
//
//	go run ./internal/bench/memorybench -smcr bin/smcr
//
// Needs root and nsenter.
package main
