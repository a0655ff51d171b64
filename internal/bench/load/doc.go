// SPDX-License-Identifier: Apache-2.0

// Load is the traffic generator of the benchmark: an ordinary static TCP
// program that knows nothing of SMC.
//
//	load server ADDRESS
//	load client ADDRESS write|roundtrip|connect DURATION
//	load client ADDRESS hold CONNECTIONS [BYTES]
//
// The client prints one line: a count and the seconds it took, of bytes, round
// trips or connections; with hold, "holding", and it goes on until SIGTERM.
// Needs no privileges.
package main
