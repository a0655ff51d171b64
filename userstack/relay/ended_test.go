// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"testing"

	"smcr/internal/testing/testkind"
)

// TestEnded: where the stream has carried both directions to their ends, a relay only closes, and resets if the program has
// reset the connection behind the end of its stream. An end in order needs nobody who may wait.
func TestEnded(t *testing.T) {
	testkind.System(t)
	for _, test := range []struct {
		name       string
		rough, end bool
	}{
		{"in order", false, false}, {"reset", true, false}, {"in order, at once", false, true}, {"reset, at once", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			rough := test.rough
			p, app, _ := connect(t)
			p.shutdown()
			if n, err := app.AwaitInput(); n != 0 || err != nil {
				t.Fatalf("instead of the end of the stream: %d, %v", n, err)
			}
			if rough {
				p.reset()
				if err := app.AwaitHangUp(); err != nil {
					t.Fatal(err)
				}
			} else if err := app.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			net := newFakeStream()
			r := &Relay{App: app, Net: net, Ended: func() bool { return true }}
			ended := test.end && r.End()
			if ended && rough {
				t.Error("End has closed a connection that was reset")
			}
			if test.end && !ended && (!rough || net.closed) {
				t.Errorf("End has returned false; network side closed: %v", net.closed)
			}
			if !ended {
				if reset := r.Run(nil); reset != rough {
					t.Errorf("a reset: %v", reset)
				}
			}
			if !net.closed || net.aborted != rough {
				t.Errorf("network side closed: %v, reset: %v", net.closed, net.aborted)
			}
			if r.upRead != nil {
				t.Error("a direction was started")
			}
		})
	}
}
