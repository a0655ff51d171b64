// SPDX-License-Identifier: Apache-2.0

// Package driver drives the protocol core of each link group (package linkgroup) with queue
// pairs, memory, timers and threads.
//
// A [Driver] has the link groups of one stack. A [Group] has one core, its lock, queue pairs
// and memory. A [Conn] moves the bytes of one connection and does not wait for the peer:
// [Reader] and [Writer] read and write what is possible, and tell when more is possible.
// Package userstack makes blocking calls, net.Conn and listeners of that, and runs the
// rendezvous that makes link groups and connections.
//
// # Locks
//
// One lock guards the core of a link group and everything that the driver has for it. A
// goroutine with an event locks, passes the event to the core, and unlocks with unlock. Then
// the actions of the core are carried out without the lock, in order, by one goroutine at a
// time. A goroutine that has locked a link group may lock the Driver, but not the other way
// round.
//
// # What does not belong here
//
// Messages and states of the protocol are in linkgroup, conn and wire, which have no I/O.
// CLC is in rendezvous. Addresses, ports and pnetids are in devices and network.
package driver
