// SPDX-License-Identifier: Apache-2.0

// Package conn is one SMC-R connection (RFC 7609, section 4): its two RMB elements,
// the cursors and windows, urgent data, the states from open to closed, and the
// move to another link.
//
// What belongs here is the protocol of CDC messages and nothing else. The package
// does no I/O, starts no goroutine, reads no clock and takes no lock. A [Conn] is
// one value made of small parts, each in a file of its own with its table:
//
//	part           | what it knows
//	---------------+-----------------------------------------------------------
//	sendBuffer     | the chunks of send memory, from produced to delivered
//	sender         | the peer's RMB element: window, repetition, small sends
//	urgentMark     | the urgent byte that the peer has yet to confirm
//	placement      | where bytes behind an urgent byte go for a Linux peer
//	receiver       | the local RMB element: cursors and window updates
//	urgentInput    | the urgent byte that the peer sent
//	closing        | who ended which direction, and the end of the TCP connection
//	move, peerMove | the change to another link, of this host and of the peer
//	keepAlive      | when a quiet link is tested
//
// A connection sees its link group, and the link that it writes over, through the
// interface [Group] only. What does not belong here: link groups, links, LLC
// messages, RMBs and RTokens. These are in package linkgroup.
//
// # Concurrency
//
// A connection belongs to the owner of its link group: all calls need the same lock.
// The slices that [Conn.SendSpace] and [Conn.RecvData] return may be used without
// it; see package linkgroup.
package conn
