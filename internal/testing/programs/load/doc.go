// SPDX-License-Identifier: Apache-2.0

// Load is the traffic generator of the benchmark: an ordinary static TCP
// program that knows nothing of SMC; with -stack, a program with a user-space
// stack of its own (userstack), whose connections are SMC-R or fail.
//
//	load [-stack] server ADDRESS
//	load [-stack] client ADDRESS write|roundtrip|connect DURATION [SIZE]
//	load [-stack] client ADDRESS many
//
// The client prints one line: a count and the seconds it took, of bytes, round
// trips or connections. SIZE is that of a message in bytes: of a write 1 MiB if
// not given and 64 MiB at most, of a round trip 1 byte and 64 KiB.
//
// With many, the client does what standard input says, and ends with it: "open N
// DURATION" opens connections until there are N, each used once, or until the time
// has passed, and prints "open" and their number; "run DURATION" sends requests of
// 64 bytes on all connections, one at a time on each, and prints "ran COUNT
// SECONDS".
//
// The server ends with SIGTERM. With -profile FILE either writes a CPU profile of
// itself when it ends. Only -stack needs privileges: those of userstack.
package main
