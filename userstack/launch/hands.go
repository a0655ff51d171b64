// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"syscall"
	"time"

	"smcr/userstack/broker"
)

// hands carries out what steps decides. n is a stopped call of the program; nil is
// none. What returns false could not be done.
type hands interface {
	// placed tells whether the program has the pair's end.
	placed() bool
	// place gives the program the pair's end in the place of its TCP socket.
	place(n *notif, nonblock bool) bool
	// placeLocal gives it an end that the service made, also in the place of the
	// pair's end.
	placeLocal(n *notif, nonblock bool, end *broker.Descriptor) bool
	// swapBack gives it its TCP socket in the place of the pair's end.
	swapBack(n *notif) bool
	// valid tells whether a call still waits.
	valid(n *notif) bool
	// answer ends a call. False is too late.
	answer(n *notif, e syscall.Errno) bool
	// drain makes the program's end writable.
	drain() bool
	// wrote and hungUp tell whether the program wrote into its end, or closed it.
	wrote() bool
	hungUp() bool
	// watch waits for either.
	watch()
	// await has timedOut called after d; zero stops that.
	await(d time.Duration)

	// proceed, release and cancel are messages to the service.
	proceed() bool
	release()
	cancel()
	// bury has serviceDead called when nothing of the service's is left.
	awaitServiceEnd()
	// connect has the launcher connect the TCP socket, and tells by connected.
	connect()
	// disconnect makes the TCP socket a fresh one.
	disconnect()

	// The rest is how an attempt ends, and what is remembered of it.
	//
	// leave lets the kernel make the connection, by call n. Nil: the program does not
	// need it any more.
	leave(n *notif)
	// native has the program go on with its TCP socket, which is connected. begun tells
	// that connect() has returned EINPROGRESS.
	native(n *notif, e syscall.Errno, begun bool)
	// carry has the program go on with the pair, whose bytes are carried by.
	carry(n *notif, by carrier)
	// fail tells the program of a failure. It returns false if the program may still
	// ask for it.
	fail(n *notif, e syscall.Errno) bool
	// retire keeps what is known for a while.
	retire()
	counts(mode broker.Mode, why string)
	countsFailed(why string)
	learn(o outcome)
}

// carrier is who carries the bytes of a pair.
type carrier uint8

const (
	byService    carrier = iota // over SMC
	byServiceTCP                // over TCP, or by the launcher if the service is gone
	byLauncher                  // over TCP
	byNobody                    // the peer has the other end
)
