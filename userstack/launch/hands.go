// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"syscall"
	"time"

	"smcr/userstack/broker"
)

// hands has the actions that steps decides on. n is a stopped call of the
// program, or nil. An action that returns false could not be done.
type hands interface {
	// placed reports whether the program has the pair's end.
	placed() bool
	// place gives the program the pair's end in the place of its TCP socket.
	place(n *notif, nonblock bool) bool
	// duplicated reports whether place did nothing because the TCP socket has
	// another descriptor in the program. Then place will never do anything.
	duplicated() bool
	// placeLocal gives the program an end that the service made, in the place
	// of its TCP socket or of the pair's end.
	placeLocal(n *notif, nonblock bool, end *broker.Descriptor) bool
	// swapBack gives the program its TCP socket in the place of the pair's end.
	swapBack(n *notif) bool
	// valid reports whether a call still waits.
	valid(n *notif) bool
	// answer ends a call. It returns false if the call does not wait any more.
	answer(n *notif, e syscall.Errno) bool
	// drain makes the program's end writable.
	drain() bool
	// wrote reports whether the program wrote into its end, and hungUp whether
	// it closed it.
	wrote() bool
	hungUp() bool
	// watch makes pairChanged be called when the program writes into its end or
	// closes it.
	watch()
	// await makes timedOut be called after d. Zero cancels this.
	await(d time.Duration)

	// proceed, release and cancel are messages to the service.
	proceed() bool
	release()
	cancel()
	// awaitServiceEnd causes eventDead when the service has no descriptor of
	// the connection any more.
	awaitServiceEnd()
	// connect makes the launcher connect the TCP socket. The result is an
	// event.
	connect()
	// disconnect makes the TCP socket unconnected.
	disconnect()

	// The other actions end an attempt, and record its result.
	//
	// leave lets the kernel make the connection with call n. If n is nil, the
	// program does not need the connection any more.
	leave(n *notif)
	// native lets the program continue with its TCP socket, which is connected.
	// begun says that connect() has returned EINPROGRESS.
	native(n *notif, e syscall.Errno, begun bool)
	// carry lets the program continue with the pair. by says who carries its
	// bytes.
	carry(n *notif, by carrier)
	// fail reports a failure to the program. It returns false if a later call
	// of the program may ask for the error.
	fail(n *notif, e syscall.Errno) bool
	// retire keeps the connection in the table for some time.
	retire()
	counts(mode broker.Mode, why string)
	countsFailed(why string)
	learn(o outcome)
}

// carrier says who carries the bytes of a pair.
type carrier uint8

const (
	byService    carrier = iota // over SMC
	byServiceTCP                // over TCP, or by the launcher if the service is gone
	byLauncher                  // over TCP
	byNobody                    // the peer has the other end
)
