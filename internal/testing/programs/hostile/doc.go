// SPDX-License-Identifier: Apache-2.0

// Hostile is a user of the machine who means the stack ill, for package e2e.
//
//	hostile press KIND ADDRESS
//	hostile cling KIND ADDRESS
//	hostile strange ADDRESS
//	hostile squat
//	hostile forge ADDRESS N
//	hostile forge-accepted ADDRESS N
//	hostile sweep FROM TO QPN PSN N
//
// The first takes all that it can get of the stack of this network namespace until
// it is killed. The kind is one of
//
//	idle, hello, half   connections of no word, a hello, half of one
//	sessions            sessions of many connections to ADDRESS
//	crowded             messages with too many descriptors, and with none
//	control, garbage    connections to the control socket of no word, of nonsense
//	unread              questions whose answers nobody reads
//	all                 all at once
//
// It says "pressing" when it has tried each.
//
// The second has the stack wait, as its end must not:
//
//	pending             thousands of connections that nobody answers
//	deaf                connections over SMC to ADDRESS, which sends, of which nothing
//	                    is read, and whose sockets block
//	locked              the same, and a thread keeps the lock of each TCP socket
//
// It says "clinging" when it has done that.
//
// The third opens a session, moves to a user and network namespace of its own,
// hands sockets of that namespace to the stack, connected to a listener there at
// the port of ADDRESS and about to connect to ADDRESS, and says what the stack
// answers.
//
// The fourth tries to be the stack of this network namespace, again and again until
// it is killed: it takes names in the abstract name space and files in root's
// directory, locks the lock, removes what is there, and listens at the place of
// its own user. It says "took" and what for each success, and "squatting" when it
// has tried everything once.
//
// The fourth has the stack connect N sockets to ADDRESS and writes CLC messages of its
// own to them, with the peer ID "FORGED!!", before, in and after the handshake, and
// steals what the peer answers. It says what became of them. The fifth does so with N
// connections that it accepts at ADDRESS; it says "listening" and "done".
//
// hostile sweep sends N RoCE packets with an ordinary UDP socket to queue pair QPN of host
// TO, in the name of the stack of host FROM, where it runs. Their PSNs are consecutive,
// from PSN on, and each is a request to end the link group. Before that, it tries to bind
// sockets to the UDP ports of the stack, and says "took" for each success.
//
// Needs no privileges.
package main
