// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// badStream panics in one direction.
type badStream struct {
	*fakeStream
	up, down bool
}

func (s badStream) ReadFrom(r io.Reader) (int64, error) {
	if s.up {
		panic("planted")
	}
	return s.fakeStream.ReadFrom(r)
}

func (s badStream) WriteTo(w io.Writer) (int64, error) {
	if s.down {
		panic("planted")
	}
	return s.fakeStream.WriteTo(w)
}

// TestRelayPanic: a panic in either direction resets the connection on both
// sides.
func TestRelayPanic(t *testing.T) {
	for name, bad := range map[string]badStream{"up": {up: true}, "down": {down: true}} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			bad.fakeStream = newFakeStream()
			b := &relayBed{net: bad.fakeStream, stop: make(chan struct{}), ended: make(chan bool, 1)}
			program, app, reset := connect(t)
			b.program = program
			r := &Relay{App: app, Net: bad, ResetProgram: reset}
			go func() { b.ended <- r.Run(b.stop) }()
			select {
			case reset := <-b.ended:
				if !reset {
					t.Error("the connection was closed, not reset")
				}
			case <-time.After(testTime):
				t.Fatal("the relay does not end")
			}
			b.wantEnd(unix.ECONNRESET)
			b.net.mu.Lock()
			defer b.net.mu.Unlock()
			if !b.net.aborted {
				t.Error("the peer is not told")
			}
		})
	}
}
