// SPDX-License-Identifier: Apache-2.0

// Package service is the stack of one network namespace as a process
// (smcr serve): it owns a [userstack.Stack], serves the control protocol of
// package nl and carries the connections of programs that package launch
// started.
//
// Both of its sockets are abstract unix sockets, which belong to the network
// namespace: who is in the namespace finds the service with no
// configuration, and nobody finds another one's.
//
// A Service is safe for concurrent use. It needs what the stack needs:
// CAP_NET_RAW for software RoCE, CAP_BPF and CAP_NET_ADMIN for the TCP
// option.
package service
