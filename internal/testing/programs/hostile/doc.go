// SPDX-License-Identifier: Apache-2.0

// Hostile acts as a user of the machine who attacks the stack, for package e2e.
//
//	hostile exhaust KIND ADDRESS
//	hostile squat
//	hostile forge ADDRESS N
//	hostile forge-accepted ADDRESS PORTS
//	hostile stages ADDRESS PORTS N
//	hostile stages-accepted ADDRESS PORTS
//	hostile sweep FROM TO QPN PSN N
//	hostile replay FROM TO PORT QPN PSN N
//
// exhaust uses as many resources of the stack in this network namespace as it can, until
// it is killed. The kind is one of
//
//	control, garbage    connections to the control socket without a message, with
//	                    invalid messages
//	linger              an invalid message, with a socket whose close waits
//	unread              requests whose answers are not read
//	connections         many connections to ADDRESS, if under smcr run
//	all                 all of them at the same time
//	requests            requests without a pause, whose answers are read
//
// It prints "exhausting" when it has tried each. With requests it also prints
// "times" and a number, each second.
//
// squat tries to be the stack of this network namespace, again and again until it is
// killed: it takes names in the abstract name space and files in root's directory, takes
// the lock, removes what exists, and listens at the place of its own user. It prints
// "took" and a name for each success, and "squatting" when it has tried everything once.
//
// forge connects N sockets to ADDRESS and the ports after it. It writes CLC messages of its own to
// them, with the peer ID "FORGED!!", as early as it can, and reads
// what the peer sends. It prints the results. forge-accepted does the same with the
// connections that it accepts at ADDRESS and as many ports; it prints "listening".
//
// stages makes N connections to ADDRESS and the ports after it, and does to each socket, at one moment of its handshake or after it, one of
// the things that a program without rights can do. It prints how many there were. stages-accepted does likewise with connections that it
// accepts, and prints "listening".
//
// sweep sends N RoCE packets with an ordinary UDP socket to queue pair QPN of host TO, in
// the name of the stack of host FROM, on which it runs. Their PSNs are consecutive, from
// PSN on, and each is a request to end the link group. Before that, it tries to bind
// sockets to the UDP ports of the stack, and prints "took" for each success.
//
// replay sends RoCE packets without end to queue pair QPN of host TO, in the name of host FROM and
// from the UDP port of its stack, with the N numbers before PSN, each with a request to end a link or
// the link group. It prints "replaying".
//
// It needs no privileges, except for replay, which uses a raw socket.
package main
