// SPDX-License-Identifier: Apache-2.0

// Package rounds is what lies below the loop of package engine: where its events
// come from ([Source]), and what its sockets read from and write to ([Stream]).
// The engine itself has the one of the kernel: epoll, and sockets. Package
// simfabric has another one, in virtual time, so that the same rounds run in a
// simulation.
//
// # Concurrency
//
// The methods of a Source are called by the goroutine of the loop, but
// [Source.Wake], [Source.Here] and [Source.Close]. Those of a Stream may be called
// from any goroutine. No privileges.
package rounds
