// SPDX-License-Identifier: Apache-2.0

// Load is the traffic generator of the benchmarks: an ordinary static TCP program that
// does not use SMC itself. With -stack, it is a program with an embedded user-space stack
// (userstack), and its connections fail if they are not SMC-R.
//
//	load [-stack] server ADDRESS
//	load [-stack] client ADDRESS write|roundtrip|connect DURATION [SIZE]
//	load [-stack] client ADDRESS many
//
// The client prints one line: a count of bytes, round trips or connections, and the
// seconds that it took. SIZE is the size of a message in bytes: for write 1 MiB by
// default and at most 64 MiB, for roundtrip 1 byte by default and at most 64 KiB.
//
// With many, the client executes commands from standard input, and ends at the end of the
// input. "open N DURATION" opens connections until there are N, and uses each once, or
// stops when the time has passed. It prints "open" and their number. "run DURATION" sends
// requests of 64 bytes on all connections, one at a time on each, and prints "ran COUNT
// SECONDS".
//
// The server ends with SIGTERM. With -profile FILE, client and server write a CPU profile
// when they end. Only -stack needs privileges: those of userstack.
package main
