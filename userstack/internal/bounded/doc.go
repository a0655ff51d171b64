// SPDX-License-Identifier: Apache-2.0

// Package bounded makes those system calls on unix sockets of this process that have no flag
// such as MSG_DONTWAIT. It bounds their time, so that no user who can connect to such a socket
// blocks the process.
//
//   - Descriptors that a user sends over a connection are closed by the process that receives
//     them, or that closes the connection. Such a close waits as long as the SO_LINGER of the
//     socket says, which a user can set to hours. It is interrupted by a signal.
//   - sendmsg(2) waits for room as long as the peer does not read.
//
// What a socket is for does not belong here. The functions are safe for concurrent use, but
// for Send. They need no privileges.
package bounded
