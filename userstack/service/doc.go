// SPDX-License-Identifier: Apache-2.0

// Package service runs the stack of one network namespace as a process
// (smcr serve). It owns a [userstack.Stack], serves the control protocol of
// package nl, and carries the connections of programs that package launch
// started. The command line, the configuration file and the log belong to
// internal/serve, not here.
//
// Both sockets of a service are in a directory whose name is the number of the
// network namespace (package place). So programs of the namespace find the
// service without configuration. The directory belongs to root, so no other
// user can replace the service.
//
// # Resets
//
// A program reads from a socketpair. The kernel returns ECONNRESET on one end
// of a pair only if the other end is closed with unread data in it. To reset a
// program's end, the service therefore stops reading, lets the launcher write
// a byte into the program's end ([broker.Conn.Broken]), and closes. The
// launcher has a copy of the service's end, which it closes when the connection
// has ended. So if SIGKILL ends the service, no end is closed, and the launcher
// makes the reset. If only the session ends, the service marks the ends that it
// does not read any more ([broker.MarkUnread]). In these cases a program sees end
// of file instead of a reset, unless data that it wrote was unread:
//
//   - after its own shutdown(SHUT_WR), which the kernel cannot undo.
//     getsockopt(SO_ERROR) still returns the reset.
//   - after SIGKILL has ended the launcher.
//
// At its end, a service resets the connections that remain.
//
// # Rights
//
// The service sets and reads options of a program's socket on a thread that has no
// more capabilities than the program ([sockopt.WithRights]). See docs/security.md.
//
// # Threads
//
// The service shares sockets with programs and launchers, which can change
// O_NONBLOCK and SO_LINGER at any time. So no system call of the service relies on
// either: it waits with epoll and calls with MSG_DONTWAIT, or uses package bounded.
// Run returns soon after its context ends, whatever programs do: it waits at most
// relayTime for launchers that do not answer.
//
// # One host
//
// Connections within a machine are TCP, also those between network namespaces (machine.go).
// Two programs of one network namespace get the two ends of a socketpair (local.go) if both
// launchers chose this. Config.NoLocal disables both.
//
// # Rules
//
// A Service is safe for concurrent use. It needs the same privileges as the stack:
// CAP_NET_RAW for software RoCE, CAP_BPF and CAP_NET_ADMIN for the TCP option.
package service
