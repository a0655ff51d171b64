// SPDX-License-Identifier: Apache-2.0

// Package softroce is a software RDMA device: the InfiniBand reliable
// connected transport in user space, over RoCE frames on an ordinary netdev.
//
// It has three layers, upper on lower:
//
//	Provider, Device, PD, MR, CQ, QP   the verbs of package rdmaverbs
//	endpoint                           the RC protocol core of one queue pair
//	wire                               frames, ICRC and sockets
//
// The endpoint (requester, responder and completer, one file each) does no
// I/O and reads no clock. It takes events (a packet came, a deadline passed, a
// work request was posted), each with the present time, and is then asked to
// fill a batch with the packets it wants to send. Device is the edge that
// drives it: one goroutine receives, one keeps the deadlines of all queue
// pairs, and packets leave in the goroutine that made them necessary, the
// poster's or the receiver's, without a hop to another.
//
// With [WithPoller] a thread of the owner's reads the sockets in place of these
// goroutines, and what is posted within one of its rounds is sent at the end of
// the round, acknowledgements and data in one system call (poller.go). An
// acknowledgement that has nothing to accompany it waits for some 50 µs.
//
// # Concurrency
//
// All exported types are safe for concurrent use. A queue pair has one lock,
// which is not held during system calls: the goroutine that sends marks the
// queue pair as sending, so that its packets keep their order, and others
// that have something to send leave it to that goroutine. Completion queue
// callbacks run with no lock held.
//
// Payload is gathered from the memory region straight into the system call.
// A work request therefore completes only when no batch that refers to its
// memory is under way, and MR.Close waits for such batches.
//
// # Privileges
//
// Opening a device needs CAP_NET_RAW, for its packet socket. The protocol core
// and its tests need nothing.
package softroce
