// SPDX-License-Identifier: Apache-2.0

// Package rounds has the interfaces below the loop of package engine: where the events of
// a loop come from ([Source]), and what its sockets read and write ([Stream]). Package engine
// implements Source with epoll. Package simfabric implements both in virtual time, so that
// the same rounds run in a simulation.
//
// # Concurrency
//
// [Source.Wake], [Source.Here] and [Source.Close] may be called from any goroutine. The other
// methods of a Source are called by the goroutine of the loop. The methods of a Stream may
// be called from any goroutine. The package needs no privileges.
package rounds
