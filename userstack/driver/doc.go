// SPDX-License-Identifier: Apache-2.0

// Package driver drives the protocol core of each link group (package linkgroup) with queue
// pairs, memory, timers and threads.
//
// A [Driver] has the link groups of one stack. A [Group] has one core, its lock, queue
// pairs and memory. A [Conn] moves the bytes of one connection and never waits for the
// peer: [Reader] and [Writer] take and give what there is, and tell when there is more.
// Package userstack makes blocking calls, net.Conn and listeners of that, and runs the
// rendezvous that makes link groups and connections.
//
// # Locks
//
// One lock guards the core of a link group and everything that the driver has for it.
// Whoever has an event takes the lock, hands the event to the core, and releases the
// lock with unlock. What the core wants done is then carried out without the lock, by one
// goroutine at a time and in order. The lock of a Driver may be taken while that of a link
// group is held, and not the other way round.
//
// # What does not belong here
//
// Messages and states of the protocol are in linkgroup, conn and wire, which have no I/O.
// CLC is in rendezvous. Addresses, ports and pnetids are in devices and network.
package driver
