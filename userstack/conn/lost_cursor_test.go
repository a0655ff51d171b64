// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"

	"smcr/userstack/wire"
)

// fullRig is a connection that has filled the element of a peer which loses its cursor, as
// far as it may, and has more to send.
func fullRig(t *testing.T, redundant bool) *rig {
	r := newRig(t, settings{losesCursor: true})
	if redundant {
		r.c.p.SetRedundant()
	}
	for range 4 {
		r.send(sendSize)
		r.done()
	}
	r.send(1000)
	r.done()
	if free, want := elemSize-int(r.at().Written-r.at().PeerRead), map[bool]int{true: cursorReserve}[redundant]; free != want {
		t.Fatalf("%d bytes are free, want %d", free, want)
	}
	r.acts = nil
	return r
}

// TestLostCursor: the peer has read everything, and its cursor was lost with the link. A
// byte of the reserve makes it say the cursor again, whichever side has changed the link.
func TestLostCursor(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"our link":           func(r *rig) { r.fail() },
		"the peer's link":    func(r *rig) { r.c.p.CursorLost() },
		"the peer says so":   func(r *rig) { r.recv(wire.CDC{Token: r.c.Token(), Flags: wire.ProdFailoverVerify}) },
		"both, at two times": func(r *rig) { r.c.p.CursorLost(); r.fail() },
	} {
		t.Run(name, func(t *testing.T) {
			r := fullRig(t, true)
			lose(r)
			r.done()
			var wrote int
			for _, a := range r.acts {
				wrote += a.n
			}
			want := 1
			if name == "both, at two times" {
				want = 2 // the first one is written again
			}
			if wrote != want || r.last.Flags&wire.ProdCursorRequest == 0 || r.at().Written-r.at().PeerRead <= elemSize-cursorReserve {
				t.Fatalf("%d bytes were written, flags %#x, %d bytes are unread", wrote, r.last.Flags, r.at().Written-r.at().PeerRead)
			}
			r.acts = nil
			r.done()
			r.expect("") // one byte is enough
			// The program takes the byte.
			r.got(int(r.at().Written - r.at().PeerRead))
			r.done()
			if r.last.Flags&(wire.ProdCursorRequest|wire.ProdWriterBlocked) != 0 || r.at().Written != r.at().Produced {
				t.Errorf("after the cursor: flags %#x, %+v", r.last.Flags, r.at())
			}
		})
	}
}

// TestLostCursorWithoutData: no data waits when the link is lost. What is sent later begins
// with a byte of the reserve.
func TestLostCursorWithoutData(t *testing.T) {
	r := newRig(t, settings{losesCursor: true, unopened: true})
	r.c.p.Establish(Remote{Token: peerToken, Size: elemSize, Redundant: true})
	for _, n := range []int{4096, 4096, 4096, 4096 - cursorReserve} {
		r.send(n)
		r.done()
	}
	r.acts = nil
	r.c.p.CursorLost()
	r.expect("")
	r.send(100)
	if a := r.acts[0]; a.k == nil || a.n != 1 {
		t.Errorf("%+v, want one byte", a)
	}
	r.expect("cdc+B+R")
}

// TestLostCursorAgain: each further link that is lost costs one byte of the reserve until
// the cursor is known. The element is never overrun.
func TestLostCursorAgain(t *testing.T) {
	r := fullRig(t, true)
	for range cursorReserve + 2 {
		r.fail()
		r.done()
	}
	if unread := r.at().Written - r.at().PeerRead; unread != elemSize {
		t.Errorf("%d bytes are unread, want %d", unread, elemSize)
	}
	r.got(elemSize)
	r.done()
	if r.at().Written != r.at().Produced {
		t.Errorf("%+v", r.at())
	}
}

// TestCursorNotLost: nothing is asked if the peer's cursor is known, and a group with one
// link keeps no reserve.
func TestCursorNotLost(t *testing.T) {
	r := newRig(t, settings{losesCursor: true})
	r.c.p.SetRedundant()
	r.send(100)
	r.done()
	r.got(100)
	r.acts = nil
	r.fail()
	r.done()
	r.expect("cdc+F")
	r.send(100)
	r.expect("cdc")

	r = fullRig(t, false)
	r.fail()
	r.done()
	r.expect("cdc+F")
}
