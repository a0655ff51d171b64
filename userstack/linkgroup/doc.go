// SPDX-License-Identifier: Apache-2.0

// Package linkgroup is the protocol core of SMC-R (RFC 7609): link groups and
// their links, the LLC exchanges and their serialization, RMBs and RToken
// tables, and the connections with their cursors, windows and states.
//
// What belongs here is protocol and nothing else. The package does no I/O,
// starts no goroutine, reads no clock and takes no lock: time is an argument
// of each event, memory and queue pairs come from an [Env] whose calls are
// synchronous and cheap, and all that flows to the outside (messages, RDMA
// writes, wake-ups, outcomes) is an [Action] that the driver takes with
// [Group.TakeActions] after each event and carries out in order. Given the
// same events, a Group does the same thing.
//
// # Concurrency
//
// A [Group] and everything reached from it (links, connections) belong to one
// owner at a time. The driver holds one lock per group around every call. Two
// things may happen outside that lock: filling the slices that
// [Conn.SendSpace] returned (one producer) and reading those that
// [Conn.RecvData] returned (one consumer). They stay valid until the call
// that reports what was done with them ([Conn.DropSpace]: nothing), or until the connection's
// [ActConnClosed] has been carried out and the driver let go of it with
// [Conn.Release].
//
// # Privileges
//
// None.
package linkgroup
