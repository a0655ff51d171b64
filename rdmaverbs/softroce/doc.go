// SPDX-License-Identifier: Apache-2.0

// Package softroce is a software RDMA device: the InfiniBand reliable connected
// transport in user space, over RoCE frames on an ordinary netdev.
//
// It has three layers:
//
//	Provider, Device, PD, MR, CQ, QP   the verbs of package rdmaverbs
//	endpoint                           the RC protocol core of one queue pair
//	wire                               frames, ICRC and sockets
//
// The endpoint (requester, responder and completer, one file each) does no I/O
// and reads no clock. Its methods are events (a packet arrived, a deadline
// passed, a work request was posted), each with the present time. Its driver
// then asks it to fill a batch with the packets to send. Device is the driver:
// one goroutine receives, one keeps the deadlines of all queue pairs, and the
// goroutine that posts or receives also sends the packets that result from it.
//
// With [WithPoller], a thread of the caller reads the sockets instead of these
// goroutines. Work requests that are posted within one of its rounds are sent
// at the end of the round, acknowledgements and data in one system call
// (poller.go). An acknowledgement without data waits up to about 100 µs.
//
// # Concurrency
//
// All exported types are safe for concurrent use. A queue pair has one lock,
// which is not held during system calls: the goroutine that sends marks the
// queue pair as sending, so that its packets keep their order, and others that
// have something to send leave it to that goroutine. Completion queue callbacks
// run with no lock held.
//
// The system call reads the payload from the memory region. So a work request
// completes only when no batch that is being sent refers to its memory, and
// MR.Close waits for such batches.
//
// # Privileges
//
// Opening a device needs CAP_NET_RAW, for its packet socket. The protocol core
// and its tests need no privileges.
package softroce
