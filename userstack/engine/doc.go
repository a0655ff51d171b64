// SPDX-License-Identifier: Apache-2.0

// Package engine is an event loop on one locked OS thread. It serves the sockets of a
// stack's devices and of its programs. Each round has the same order, and no goroutine
// is woken within a round.
//
// A round has four parts:
//
//  1. events of epoll: the loop reads the devices, and the protocol handles the
//     packets;
//  2. tasks ([Loop.Task]): the loop writes to the programs and reads from them;
//  3. late tasks ([Loop.LateTask]): what the programs of all connections wrote is
//     posted to the devices together;
//  4. last tasks ([Loop.LastTask]): the devices send what parts 1 to 3 have
//     prepared, acknowledgements and data together.
//
// The loop sleeps in epoll when a round had nothing to do. After activity it first looks
// for new events for a short time (it spins), and yields the core between two looks. The
// next packet usually comes soon, and a wake-up of the thread would take longer.
//
// A loop made by [New] gets its events from the kernel, by epoll. [NewOn] runs the same
// rounds with another source of events, in the virtual time of a simulation.
//
// Goroutines can run rounds in place of the thread ([Loop.Enter], [Waiter.Drive]). This
// saves wake-ups between the thread and the goroutines.
//
// What the tasks do, such as the protocol and the devices, does not belong here.
//
// # Concurrency
//
// All functions given to a Loop run one at a time: on the thread of the Loop, or in a
// goroutine that is in Drive or Leave. They must not block. The methods of Loop, Task and
// Watch may be called from any goroutine, and from these functions. The package needs no
// privileges.
package engine
