// SPDX-License-Identifier: Apache-2.0

// Package rc makes one end of a reliable connection on a software RDMA device
// of this network namespace: device, memory, completion queues and queue pair,
// for programs that exchange the numbers of a queue pair over a TCP connection
// of their own, as the test programs of the RDMA world do.
//
// Whoever waits for a completion, or for memory to change, polls: between Hold
// and Release it runs the packet I/O of the device itself, so that no thread is
// to be woken for a packet. A goroutine for each device does so at other times.
// Every wait is bounded by a context and by the patience that its caller has with
// a silent peer.
package rc
