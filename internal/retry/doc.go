// SPDX-License-Identifier: Apache-2.0

// Package retry repeats calls that the kernel refuses for a reason that soon passes, such
// as a lack of memory, for a bounded time.
//
// A unix socket has such states: sendmsg(2) fails with ENOBUFS or ENOMEM if the kernel has
// no memory for the message at that moment, and the message was not sent. Whoever ends a
// session because of this loses all connections of the session.
//
// A call that a signal has interrupted is repeated at once, and as often as that happens.
//
// What is exhausted and how long a caller can wait is the caller's decision. Waiting for a
// peer does not belong here: sockets have deadlines for that.
//
// The package imports nothing of this module.
package retry
