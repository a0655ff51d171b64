// SPDX-License-Identifier: Apache-2.0

// Package engine is an event loop on one locked OS thread: the sockets of a
// stack's devices and of its programs are served by it, each round in the same
// order, without a goroutine to wake in between.
//
// A round has four parts:
//
//  1. what epoll reports: devices are read, and the protocol handles what came;
//  2. tasks ([Loop.Task]): programs are written to and read from;
//  3. late tasks ([Loop.LateTask]): what the programs of all connections wrote
//     is posted to the devices in one go;
//  4. last tasks ([Loop.LastTask]): devices send what the parts before made
//     ready, acknowledgements and data together.
//
// The loop sleeps in epoll when a round had nothing to do. After activity it
// looks again for a short while, and yields the core meanwhile, because the next
// packet is usually near and waking a thread takes longer than that.
//
// [New] has the kernel's events, by epoll. [NewOn] runs the same rounds on another
// source of events, in the virtual time of a simulation.
//
// Goroutines can take the thread's place ([Loop.Enter], [Waiter.Drive]), which
// saves the wake-ups between it and them.
//
// No call on a [Socket] waits, whatever flags its other owners give it and whatever
// descriptors come along with its data.
//
// # Concurrency
//
// All functions given to a Loop run on its thread, or on that of a goroutine in
// Drive or Leave, one at a time, and must not block. The methods of Loop, Task and Watch may be called from any goroutine,
// and from these functions too. No privileges.
package engine
