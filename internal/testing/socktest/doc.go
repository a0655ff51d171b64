// SPDX-License-Identifier: Apache-2.0

// Package socktest has the sockets of tests, and what a program does with its sockets:
// TCP connections, and sockets whose close would wait or whose lock is held. It is for tests
// alone.
//
// The functions are for the goroutine of the test. No privileges are needed.
package socktest
