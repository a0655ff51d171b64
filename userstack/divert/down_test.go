// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestDown has a stack that cannot abort connections reset one while the device of its program is down: the program knows nothing of
// that, as with TCP, until the device is up.
func TestDown(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, test := range []struct {
		name  string
		reset func(*Flow)
	}{
		{"reset", (*Flow).Reset},
		{"finished with a reset", func(f *Flow) { f.Finish(true) }},
		{"the program first", func(f *Flow) { f.ResetProgram(); f.Finish(false) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			flows := make(chan *Flow, 2)
			b := newBed(t, func(b *bed, f *Flow) {
				_, giveBack, ok := b.carry(f)
				if !ok {
					return
				}
				giveBack()
				if f.Role == smc.Client {
					flows <- f
				}
			})
			b.d[0].sockets.aborts = false
			c := b.dial(b.listen(b.B.Addr()))
			f := <-flows
			b.must(b.A.SetLink(0, false))
			test.reset(f)
			b.must(c.SetReadDeadline(time.Now().Add(4 * sweepEvery)))
			var timeout interface{ Timeout() bool }
			if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("read %d bytes, %v, while the device is down", n, err)
			}
			b.must(b.A.SetLink(0, true))
			b.must(c.SetReadDeadline(time.Time{}))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v, want ECONNRESET", err)
			}
		})
	}
}
