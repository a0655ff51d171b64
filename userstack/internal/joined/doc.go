// SPDX-License-Identifier: Apache-2.0

// Package joined has the rules of a connection between two programs of one host that have
// the two ends of a unix socketpair. The kernel's rules for a pair differ from TCP when a
// program closes its end: the other one gets POLLHUP at once, and its next write fails. So
// the stack keeps a descriptor of both ends. Then the last close of a program does not close
// the end, and the stack decides what the other program sees.
//
// A Pair has no I/O. It takes events, such as the last close of an end, and returns actions
// for the stack. It is not safe for concurrent use.
package joined
