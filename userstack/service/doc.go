// SPDX-License-Identifier: Apache-2.0

// Package service is the stack of one network namespace as a process
// (smcr serve): it owns a [userstack.Stack], serves the control protocol of
// package nl and carries the connections of programs that package launch
// started.
//
// Both of its sockets are in a directory of root's that bears the number of the
// network namespace (package place): who is in the namespace finds the service
// with no configuration, and no other user can take its place.
//
// # Resets
//
// A program reads from a socketpair, and the kernel gives ECONNRESET to the
// end of one only when the other is closed with data unread in it. To make a
// reset of an end, the service therefore stops reading, has the launcher write
// a byte in the program's place ([broker.Conn.Broken]) and closes. The launcher
// has a copy of the end, too, which it closes when the connection has ended:
// the death of the service by SIGKILL therefore closes nothing, and the
// launcher makes a reset of it. A service that lives on without the session
// marks the ends that it reads no more ([broker.MarkLetGo]). There are cases
// in which a reset looks like an end of file, unless something that the program
// wrote lay there unread:
//
//   - after the program's own shutdown(SHUT_WR), which the kernel does not take
//     back for anybody. getsockopt(SO_ERROR) tells the program even then.
//   - after the death of the launcher by SIGKILL.
//
// A service that is told to end makes resets of the connections that are left.
//
// # Rights
//
// The service sets and reads options of a program's socket on a thread that has no
// more capabilities than the program ([sockopt.WithRights]), however many it has
// itself. See docs/security.md.
//
// # Threads
//
// Programs and launchers share the sockets that the service has of them, and can
// change O_NONBLOCK and SO_LINGER of those at any time. No system call of the
// service relies on either: it waits by epoll and calls with MSG_DONTWAIT, or by
// way of package bounded. Run ends soon after its context does, whatever programs
// do: launchers that do not answer are waited for no longer than relayTime.
//
// # Rules
//
// A Service is safe for concurrent use. It needs what the stack needs:
// CAP_NET_RAW for software RoCE, CAP_BPF and CAP_NET_ADMIN for the TCP
// option.
package service
