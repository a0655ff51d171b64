// SPDX-License-Identifier: Apache-2.0

// Package rdmaverbs is the verbs interface that SMC-R uses: devices, ports,
// GIDs, protection domains, memory regions, completion queues and reliable
// connected queue pairs.
//
// The names and meanings are those of the InfiniBand specification's verbs
// chapter and of libibverbs, limited to what RFC 7609 needs (RC transport:
// SEND, RDMA WRITE, RDMA READ). Providers implement the interfaces: package
// softroce, and simfabric for tests of the stack. Package verbstest has the
// tests that each provider must pass.
//
// What belongs here: the interfaces, their errors, and memory for registration.
// What does not: packets and protocols. The package does no network I/O. All
// its interfaces are safe for concurrent use.
package rdmaverbs
