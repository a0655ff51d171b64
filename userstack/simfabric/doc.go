// SPDX-License-Identifier: Apache-2.0

// Package simfabric simulates, in memory, what is below the stack in tests: hosts with
// netdevs on LANs, the RDMA devices on these netdevs, and TCP connections between the
// addresses of the hosts. A seed determines every delay and loss.
//
// The verbs are those of a reliable connected transport: the messages of a queue pair
// arrive once and in order. A message that is lost arrives later. If the peer cannot be
// reached, the queue pair fails after its retries. TCP is also reliable, and ends as
// SMC-R must expect: by FIN, by RST, or without an answer.
//
// A [Loop] is a loop of package engine in the time of the world. It can serve the devices
// of a host and the sockets of its programs.
//
// Code of the stack does not belong here, nor tests of it.
//
// # Concurrency
//
// Everything is safe for concurrent use. There are no real sockets, so everything works
// in a testing/synctest bubble, where all time is fake. One goroutine of each [World]
// processes the events when they are due; [World.Close] ends it. It calls the notify
// functions of completion queues. The call that adds a completion may also call them. No
// lock of this package is held then.
//
// # Privileges
//
// None.
package simfabric
