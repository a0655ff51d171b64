// SPDX-License-Identifier: Apache-2.0

// Smcpeer sends data over the kernel's AF_SMC sockets, for tests in guests:
//
//	smcpeer serve [-tcp] ADDRESS:PORT
//	smcpeer connect [-tcp] [-n CONNECTIONS] [-bytes BYTES] [-every TIME] ADDRESS:PORT
//
// The server sends back what it receives. It prints "listening" when it is ready. The
// client sends this number of bytes over each connection and compares the echo. Then it
// prints "echoed" and keeps the connections until it is killed. With -every, it does the
// same again each time this time has passed. With -tcp, the sockets are TCP sockets. One goroutine uses each connection. It needs no privilege.
package main
