// SPDX-License-Identifier: Apache-2.0

// Smcpeer moves data over the kernel's AF_SMC sockets, for tests in guests:
//
//	smcpeer serve [-tcp] ADDRESS:PORT
//	smcpeer connect [-tcp] [-n CONNECTIONS] [-bytes BYTES] ADDRESS:PORT
//
// The server echoes; it says "listening" when it does. The client sends that
// many bytes over each connection and compares what comes back, says "echoed"
// and keeps the connections until it is killed. With -tcp the sockets are TCP's.
// Each connection belongs to one goroutine. Needs no privilege.
package main
