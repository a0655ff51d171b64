// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"

	"smcr/userstack"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
)

// A connection rides while the engine carries its bytes and the ends of its streams, without a goroutine.
// The goroutines of the relay start when there is something else to do, follow
// the table of the relay, and end if the connection can ride again:
//
//	rides, and                                      | then
//	both streams have ended                         | the engine closes both sides, or a goroutine if
//	                                                | the program has reset the connection behind that
//	the engine hands a direction back: urgent byte, | goroutines; after an urgent byte the
//	error, reset, end of the connection             | connection rides again
//	the service ends                                | goroutines, which end the connection;
//	                                                | it does not ride any more
//
// Without an engine, all connections have goroutines all the time.

// ride does the same as r.Run, without a goroutine while conn rides. conn is r.Net,
// and k its carriage, which is attached. over is called when Run would return; an error means a panic.
func ride(r *relay.Relay, conn *userstack.Conn, k inside.Carriage, ending context.Context, over func(reset bool, err error)) {
	forget := context.AfterFunc(ending, r.Guard.Func("the end of a ride", k.Recall))
	var work func()
	begin := k.Loop().Task(func() {
		ended := false
		if err := r.Guard.Do("the end of a relay", func() { ended = r.End() }); err != nil || !ended {
			go r.Guard.Func("the end of a relay", work)()
			return
		}
		forget()
		over(false, nil)
	}).Schedule
	work = func() {
		rides := false
		err := r.Guard.Do("a relay", func() { rides = r.Carry(ending.Done()) })
		if err == nil && rides && k.Ride(begin) {
			return
		}
		forget()
		if err != nil {
			_ = conn.Abort()
		}
		over(r.Finish(), err)
	}
	if !k.Ride(begin) {
		begin()
	}
}
