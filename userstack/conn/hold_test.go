// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"
	"time"

	"smcr/userstack/wire"
)

// TestAutocork: the size that a connection holds back while a message is
// outstanding, with a send buffer of 4096 bytes.
func TestAutocork(t *testing.T) {
	const noDelay = -2 // a size as any, with TCP_NODELAY
	for _, tt := range []struct {
		size, held int
	}{{0, 2048}, {100, 100}, {4000, 2048}, {-1, 0}, {noDelay, 0}} {
		r := newRig(t, settings{autocork: max(tt.size, -1)})
		if tt.size == noDelay {
			r = newRig(t, settings{})
		}
		r.c.SetNoDelay(r.now, tt.size == noDelay)
		r.send(1)
		r.expect("cdc")
		if tt.held > 0 {
			r.send(tt.held)
			r.expect("")
		}
		r.send(1)
		r.expect("cdc")
	}
}

// TestAutocorkGives: what else there is to be said does not wait, and takes
// the data along.
func TestAutocorkGives(t *testing.T) {
	tests := []struct {
		name string
		do   func(r *rig)
		want string
	}{
		{"urgent data", func(r *rig) { r.urge(1) }, "cdc+P+U"},
		{"shutdown", func(r *rig) { r.c.CloseWrite(r.now) }, "cdc"},
		{"close", func(r *rig) { r.c.Close(r.now) }, "cdc"},
		{"TCP_NODELAY", func(r *rig) { r.c.SetNoDelay(r.now, true) }, "cdc"},
		{"window update", func(r *rig) { r.give(10, wire.ProdWriterBlocked); r.c.Consumed(r.now, 10) }, "cdc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, settings{})
			r.send(10)
			r.expect("cdc")
			r.send(5)
			r.expect("")
			tt.do(r)
			r.expect(tt.want)
			if r.at().Written != r.at().Produced {
				t.Errorf("%d bytes held back", r.at().Produced-r.at().Written)
			}
		})
	}
}

// TestCork: a corked connection holds data back for a quarter of a second, or
// until it is uncorked or half of its send buffer is full.
func TestCork(t *testing.T) {
	r := newRig(t, settings{})
	r.c.SetCork(r.now, true)
	r.send(10)
	r.wait(corkDelay - time.Millisecond)
	r.send(10)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc")
	if r.at().Written != 20 {
		t.Errorf("%d bytes sent", r.at().Written)
	}
	r.done()
	r.send(10)
	r.expect("") // still corked
	r.c.SetCork(r.now, false)
	r.expect("cdc")
	r.done()
	r.c.SetCork(r.now, true)
	r.send(2047)
	r.expect("")
	r.send(1)
	r.expect("cdc")
	r.done()
	r.send(1)
	r.c.CloseWrite(r.now)
	r.expect("cdc")
	r.done()
	r.expect("cdc+D")
	if r.c.p.out.hold.timer.running() {
		t.Error("timer left")
	}
}
