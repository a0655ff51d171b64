// SPDX-License-Identifier: Apache-2.0

// Hostile acts as a user of the machine who attacks the stack, for package e2e.
//
//	hostile exhaust KIND ADDRESS
//	hostile block KIND ADDRESS
//	hostile foreign ADDRESS
//	hostile prepared ADDRESS NUMBER PID
//	hostile squat
//	hostile forge ADDRESS N
//	hostile forge-own ADDRESS N
//	hostile forge-accepted ADDRESS PORTS
//	hostile sweep FROM TO QPN PSN N
//	hostile replay FROM TO PORT QPN PSN N
//
// exhaust uses as many resources of the stack in this network namespace as it can, until
// it is killed. The kind is one of
//
//	idle, hello, half   connections with no message, a hello, half of a hello
//	sessions            sessions with many connections to ADDRESS
//	crowded             messages with too many descriptors, and with none
//	control, garbage    connections to the control socket without a message, with
//	                    invalid messages
//	linger, linger-control
//	                    a hello, and an invalid message, with a socket whose close
//	                    waits
//	unread              requests whose answers are not read
//	all                 all of them at the same time
//	requests            requests without a pause, whose answers are read
//	hellos              sessions without a pause, closed at once
//
// It prints "exhausting" when it has tried each. With requests and hellos it also prints
// "times" and a number, each second.
//
// block makes the stack wait in ways that must not delay its end:
//
//	pending             thousands of connections without an answer
//	deaf                connections over SMC to ADDRESS, which sends; nothing is read,
//	                    and the sockets block
//	locked              the same, and a thread holds the lock of each TCP socket
//
// It prints "blocking" when it has done that.
//
// foreign opens a session and moves to a new user and network namespace. It passes
// sockets of this namespace to the stack: one that is connected to a listener there at
// the port of ADDRESS, and one to be connected to ADDRESS. It prints the answers of the
// stack.
//
// prepared makes the stack, process PID, connect a socket to ADDRESS whose options or other
// users make the handshake go wrong: the one with the NUMBER, from 0. It prints its name and
// the outcome, or "no more".
//
// squat tries to be the stack of this network namespace, again and again until it is
// killed: it takes names in the abstract name space and files in root's directory, takes
// the lock, removes what exists, and listens at the place of its own user. It prints
// "took" and a name for each success, and "squatting" when it has tried everything once.
//
// forge makes the stack connect N sockets to ADDRESS. It writes its own CLC messages to
// them, with the peer ID "FORGED!!", before, during and after the handshake, and reads
// the answers of the peer. It prints the results. forge-accepted does the same with N
// connections that it accepts at ADDRESS; it prints "listening" and "done".
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
