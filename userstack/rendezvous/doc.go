// SPDX-License-Identifier: Apache-2.0

// Package rendezvous decides what becomes of a TCP connection whose two ends
// announced SMC: SMC-R, TCP, or a reset. It is the exchange of CLC messages of RFC
// 7609, sections 3.5 and 4.1 and appendices A.2 and C, and of version 2 of SMC as
// Linux speaks it.
//
// A [Machine] is one side of one rendezvous, client or server. Its driver hands it
// an [Event] with the time, and then carries out the actions that it takes with
// [Machine.TakeActions], in order:
//
//	what happens                        | what the machine asks for
//	------------------------------------+----------------------------------------
//	bytes of TCP, and its end           | a CLC message is sent
//	the outcome of an LLC exchange      | a link group is made, found or ended
//	the state of TCP behind a DECLINE   | the connection is attached, or given back
//	a deadline                          | the peer is told why not: DECLINE
//	the program or the stack gives up   | SMC-R, TCP or a reset: the [Outcome]
//
// The tables of states and transitions are code: clientTable in client.go,
// serverTable in server.go, and what both have in common in firstcontact.go,
// decline.go and ending.go. letgo.go has in which order the two programs are let go. What the messages of version 1 and 2 do differently is behind the
// interface version, in version1.go and version2.go.
//
// [Limit] and [FirstContacts] count what a server has under way with each host and each origin of hosts, and bound
// it. A part is for the hosts that [Known] has.
//
// What belongs here is the protocol and nothing else. The package opens no socket,
// starts no goroutine, reads no clock and takes no lock. It does not know link groups
// either: it names them by what the messages say. Package userstack has the driver.
// Given the same events at the same times, a machine does the same thing.
//
// A [Machine] is for one goroutine at a time. Nothing here needs a privilege.
package rendezvous
