// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestAutocork: the size that a connection holds back while a message is
// outstanding, with a send buffer of 4096 bytes.
func TestAutocork(t *testing.T) {
	const noDelay = -2 // a size as any, with TCP_NODELAY
	for _, tt := range []struct {
		size, held int
	}{{0, 2048}, {100, 100}, {4000, 2048}, {-1, 0}, {noDelay, 0}} {
		r := newRig(t, smc.Server, func(c *Config) {
			noTest(c)
			if tt.size != noDelay {
				c.Autocork = tt.size
			}
		})
		r.open()
		r.c.SetNoDelay(r.s.now, tt.size == noDelay)
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
		{"shutdown", func(r *rig) { r.c.CloseWrite(r.s.now) }, "cdc"},
		{"close", func(r *rig) { r.c.Close(r.s.now) }, "cdc"},
		{"TCP_NODELAY", func(r *rig) { r.c.SetNoDelay(r.s.now, true) }, "cdc"},
		{"window update", func(r *rig) { r.give(10, wire.ProdWriterBlocked); r.c.Consumed(r.s.now, 10) }, "cdc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Server, noTest)
			r.open()
			r.send(10)
			r.expect("cdc")
			r.send(5)
			r.expect("")
			tt.do(r)
			r.expect(tt.want)
			if r.c.sent != r.c.prep {
				t.Errorf("%d bytes held back", r.c.prep-r.c.sent)
			}
		})
	}
}

// TestCork: a corked connection holds data back for a quarter of a second, or
// until it is uncorked or half of its send buffer is full.
func TestCork(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.c.SetCork(r.s.now, true)
	r.send(10)
	r.wait(corkDelay - time.Millisecond)
	r.send(10)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc")
	if r.c.sent != 20 {
		t.Errorf("%d bytes sent", r.c.sent)
	}
	r.done()
	r.send(10)
	r.expect("") // still corked
	r.c.SetCork(r.s.now, false)
	r.expect("cdc")
	r.done()
	r.c.SetCork(r.s.now, true)
	r.send(2047)
	r.expect("")
	r.send(1)
	r.expect("cdc")
	r.done()
	r.send(1)
	r.c.CloseWrite(r.s.now)
	r.expect("cdc")
	r.done()
	r.expect("cdc+D")
	if at, ok := r.g.Deadline(); ok && !r.c.corkAt.IsZero() {
		t.Errorf("timer left: %v", at)
	}
}
