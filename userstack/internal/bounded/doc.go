// SPDX-License-Identifier: Apache-2.0

// Package bounded makes the system calls on programs' sockets that have no flag by
// which they never wait, so that no program can hold a thread of the stack: nor the
// one of an engine, which all connections share.
//
//   - connect goes by O_NONBLOCK, which belongs to the open file description. A
//     program that shares it can clear the flag at any time.
//   - close of the last descriptor of a socket goes by SO_LINGER, which a program
//     can set to hours.
//   - Descriptors that a program passes over its end of a pair are closed by
//     whoever reads what they came with, or closes the pair: again by SO_LINGER.
//   - A reset takes the lock of the TCP socket, which a program can have another
//     call hold. Nothing wakes that up: it has a thread of its own, and its caller
//     goes on.
//
// Such a call is woken, without harm to one that is only slow, when it takes longer
// than 20 ms, and only so many are made at a time. What waits for its turn is a
// goroutine. All else has MSG_DONTWAIT.
//
// Most closes have nothing to wait for: those of unix sockets with nothing in the
// queue, and of TCP sockets without SO_LINGER. They take no goroutine.
//
// The functions are safe for concurrent use. They need no privilege.
package bounded
