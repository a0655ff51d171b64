// SPDX-License-Identifier: Apache-2.0

// Package linkgroup is the link groups of SMC-R (RFC 7609, sections 2 and 3): groups
// and their links, the LLC exchanges and their order, and the RMBs of both sides.
//
// What belongs here is protocol and nothing else. The package does no I/O, starts no
// goroutine, reads no clock and takes no lock. Time is an argument of each event. Memory
// and queue pairs come from an [Env], whose calls are synchronous and cheap. Everything
// else that a group wants done (messages, RDMA writes, wake-ups, results) is an [Action].
// The driver takes the actions with [Group.TakeActions] after each event and carries
// them out in order. Given the same events, a Group does the same thing.
//
// What does not belong here: a single connection with its cursors, windows and states,
// which is package conn, and the encoding of messages, which is package wire. A group
// knows of a connection only its RMB element, the peer's RMB and its links ([Conn]).
//
// A [Group] is made of parts:
//
//	part           | what it knows                                    | file
//	---------------+--------------------------------------------------+--------------------
//	profile        | what the peer's version and system change        | profile.go
//	actionQueue    | actions that the driver has not taken            | action.go
//	timers         | when something is to be done                     | timers.go
//	linkTable      | links, devices, and which links are useful       | links.go, topology.go
//	rmbTable       | the local RMBs and their elements                | rmb.go
//	peerTable      | the RMBs of the peer, on all links               | peerrmb.go
//	firstContact   | the first contact                                | first.go, llc_confirmlink.go
//	llcEngine      | which LLC exchange is under way                  | llc.go, advance.go
//	linkAddition   | ADD LINK                                         | llc_addlink.go
//	linkDeletion   | DELETE LINK                                      | llc_deletelink.go
//	rkeyEngine     | CONFIRM RKEY and DELETE RKEY                     | llc_rkey.go
//	linkTests      | TEST LINK                                        | llc_testlink.go
//	linkChanges    | what follows when links come and go              | failure.go, rebalance.go
//	ending         | the end of the group                             | end.go
//
// # Concurrency
//
// A [Group] and everything reached from it (links, connections) belong to one
// owner at a time. The driver holds one lock per group around every call. Two
// things may happen outside that lock: filling the slices that
// [conn.Conn.SendSpace] returned (one producer) and reading those that
// [conn.Conn.RecvData] returned (one consumer). They stay valid until the call
// that reports what was done with them ([conn.Conn.DropSpace]: nothing), or until the connection's
// [ActConnClosed] has been carried out and the driver has released it with
// [Conn.Release].
//
// # Privileges
//
// None.
package linkgroup
