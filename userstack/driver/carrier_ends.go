// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The end of a stream travels as fast as data, in the same round and behind it. In both directions
// the carrier passes it on where it finds that nothing is before it: when a read of the socket returns
// the end, and when all that has arrived was written to the socket.
//
//	in ends, and                       | then
//	out has not ended                  | CloseWrite: the core sends what it has first
//	out has ended                      | Close, which says both
//	the socket was reset, too          | in is handed back
//
//	out ends, and                      | then
//	in has not ended                   | the socket is shut down for writing
//	in has ended                       | the same; both have ended, and the ride ends
//	the socket was reset behind its end| out is handed back
//
// A direction that has ended is as one that a goroutine has carried to its end: ReadFrom and WriteTo
// return at once. While in has ended and out has not, the socket can only be reset: see lookBehind.

// Ended reports whether both streams have ended, and both ends were passed on. It is false if the
// connection is not attached.
func (x *Carriage) Ended() bool {
	k := x.p.Load()
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.in.ended && k.out.ended
}

// ends ends a direction whose end was passed on. k.mu is held.
func (k *carrier) ends(d *direction) {
	d.active, d.ended = false, true
	d.tell()
	if k.in.ended && k.out.ended {
		k.endRide()
	}
}

// endIn passes the end of what the program writes on to the peer. k.mu and g.mu are held.
func (k *carrier) endIn() {
	c, d := k.c, &k.in
	d.err = io.EOF
	up, failed := k.sock.HungUp()
	switch {
	case failed || up && !k.out.ended || c.End.over || c.g.end.dead || c.g.end.broken:
		// The relay finds out whether the program has reset the connection.
		k.handBack(d)
		return
	case k.out.ended:
		c.End.closeHeld(time.Now())
		k.left = true
	default:
		c.core.CloseWrite(time.Now())
	}
	k.ends(d)
}

// endOut passes the end of what the peer sends on to the program, which has room for everything
// before it. k.mu and g.mu are held.
func (k *carrier) endOut() {
	up := false
	if k.in.ended {
		up, _ = k.sock.HungUp()
	}
	if up || k.c.g.end.broken || k.sock.CloseWrite() != nil {
		k.handBack(&k.out)
		return
	}
	k.ends(&k.out)
}

// look looks what the program does when the peer has closed the connection: if it ends its stream,
// that is an end as any other. If it writes, it must hear that nobody reads that: the relay tells it.
// k.mu and g.mu are held.
func (k *carrier) look() {
	d := &k.in
	if !d.ready {
		return
	}
	switch n, errno := k.sock.Peek(); {
	case errno == unix.EAGAIN:
		d.ready = false
	case errno != 0:
		d.err = syscall.Errno(errno)
		k.handBack(d)
	case n > 0:
		k.handBack(d)
	default:
		k.endIn()
	}
}

// lookBehind ends the ride if the program has reset the connection behind the end of its stream.
// Without a ride, the relay waits for that. k.mu is held.
func (k *carrier) lookBehind() {
	if k.back == nil || !k.in.ready {
		return
	}
	k.in.ready = false
	if up, _ := k.sock.HungUp(); up {
		k.endRide()
	}
}
