// SPDX-License-Identifier: Apache-2.0

// Package takeover is the protocol by which a stack hands its network namespace over to a
// newer process: messages over a unix seqpacket socket, with descriptors.
//
// It holds the codec and the versions. What is handed over, and in which order, is in
// package service. Who may connect is decided there too.
//
//	new process                          old process, which is the stack
//	Hello                          ->
//	                               <-    Refuse, end; or
//	                               <-    Offer: the lock of the place
//	(starts all that can fail)
//	Ready                          ->    changes by commands wait; UDP sockets are shared
//	                               <-    Sockets, several times
//	                               <-    Frozen: the statistics until now, the hosts that are known
//	(reads configuration and state)
//	Commit                         ->    takes no new connections
//	                               <-    Done
//	(gives its sockets their names)
//
// If either side ends before Done, nothing has changed for the old process: it takes back
// what it has shared. If the new process does not receive Done, it does not serve.
//
// When the old process has ended its last connection, it connects to the process that is
// the stack then:
//
//	Ended: the statistics since Frozen   ->
//	                                     <-    Done
//
// The first bytes of each message have the same meaning in all versions: 8 bytes "smcrtake",
// the version, the type, each 4 bytes in little endian. The rest is JSON. Unknown fields are
// ignored.
//
// A Conn is for one goroutine at a time. The package needs no privileges.
package takeover
