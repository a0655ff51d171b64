// SPDX-License-Identifier: Apache-2.0

// Package bounded makes those system calls on sockets of programs that have no flag such as
// MSG_DONTWAIT. It bounds their time and number, so that no program can block a thread of
// the stack, such as the thread of an engine, which all connections share.
//
//   - connect(2) waits unless O_NONBLOCK is set. This flag belongs to the open file
//     description: a program that shares it can clear the flag at any time.
//   - close(2) of the last descriptor of a socket waits as long as SO_LINGER says. A
//     program can set this to hours.
//   - Descriptors that a program sends over its end of a pair are closed by the process
//     that receives them or closes the pair. Such a close waits for SO_LINGER too.
//   - A reset takes the lock of the TCP socket. A program can make another system call
//     hold this lock. A signal does not end the wait for it, so a reset runs on its own
//     thread, and the caller continues after 20 ms.
//   - sendmsg(2) waits for room as long as the peer does not read.
//
// Every other call is interrupted by a signal when it takes longer than 20 ms. This does
// no harm to a call that is only slow. The number of concurrent calls is limited; a call
// that must wait for another one occupies only a goroutine.
//
// Most closes do not wait: those of unix sockets with an empty queue, and of TCP sockets
// without SO_LINGER. They need no goroutine.
//
// What a socket is for does not belong here. The functions are safe for concurrent use, but
// for Send. They need no privileges.
package bounded
