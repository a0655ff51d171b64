// SPDX-License-Identifier: Apache-2.0

// Package simfabric is a world in memory for tests of the stack: hosts with
// netdevs on LANs, the RDMA devices on these netdevs, and TCP connections
// between the hosts' addresses. A seed decides every delay and loss.
//
// What belongs here is what lies below the stack. The verbs are those of a
// reliable connected transport: messages of a queue pair arrive once and in
// order, however late; a lost one only comes later; where the peer cannot be
// reached the retries run out and the queue pair fails. TCP is as reliable,
// with the ends that matter to SMC-R: FIN, RST, and silence.
//
// A [Loop] is a loop of package engine in the world's time, on which a host's
// devices and its programs' sockets may be.
//
// # Concurrency
//
// Everything is safe for concurrent use and, as it has no real sockets, works
// in a testing/synctest bubble, where all time is fake. One goroutine of each
// [World] carries out what is due; [World.Close] ends it. Notify functions of
// completion queues are called from it, or from within the call that added
// the completion, and never with a lock of this package held.
//
// # Privileges
//
// None.
package simfabric
