// SPDX-License-Identifier: Apache-2.0

// Package socktest has the sockets of tests, and what a program does with its sockets:
// socketpairs, TCP connections, and sockets whose close would wait. It is for tests
// alone.
//
// The functions are for the goroutine of the test. No privileges are needed.
package socktest
