// SPDX-License-Identifier: Apache-2.0

// Package rdmaverbs is the verbs interface that SMC-R stands on: devices,
// ports, GIDs, protection domains, memory regions, completion queues and
// reliable-connected queue pairs.
//
// The names and meanings are those of the InfiniBand specification's verbs
// chapter and of libibverbs, cut down to what RFC 7609 needs (RC transport:
// SEND, RDMA WRITE, RDMA READ). Providers (package softroce, and
// simfabric of the stack's tests) implement Device; package verbstest holds the
// suite that says what one has to do.
//
// Package rdmaverbs is a leaf: it does no I/O and imports no other package
// of this module. All its interfaces are safe for concurrent use.
package rdmaverbs
