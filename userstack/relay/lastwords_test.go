// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"sync/atomic"
	"testing"

	"smcr/internal/testing/testkind"
)

// What a program wrote before it closed comes to the peer before the reset that
// data for the program makes of the close, as with TCP; but not for ever.
func TestLastWords(t *testing.T) {
	for _, room := range []bool{true, false} {
		b := newRelayBed(t, func(b *relayBed) {
			b.net.full = true
			b.write("last words")
			b.close()
			if room {
				b.drainIdle = testTime
			}
		})
		// The first bytes that nobody reads make the program's end reset, and the next ones show it.
		if !b.net.await(func() bool {
			b.net.in = append(b.net.in, "nobody reads"...)
			b.net.wake.Broadcast()
			return b.relay.undelivered.Load()
		}) {
			t.Fatal("the relay does not see that nobody reads")
		}
		if room {
			b.net.change(func() { b.net.full = false })
			b.peerGets("last words", true)
		}
		b.wantOver(true, false)
	}
}

// TestSentBeforeReset: a program resets its connection, while the network has room for what it wrote and has not sent it. The
// peer is reset behind that.
func TestSentBeforeReset(t *testing.T) {
	for _, ends := range []bool{false, true} { // its stream first
		var asked atomic.Int32
		var sent atomic.Bool
		b := newRelayBed(t, func(b *relayBed) {
			b.sending = func() bool { asked.Add(1); return !sent.Load() }
		})
		b.write("last words")
		b.peerGets("last words", false)
		if ends {
			b.shutdown()
			b.peerGets("last words", true)
		}
		b.reset()
		testkind.Eventually(t, "the relay asks whether all is sent", func() (any, bool) {
			n := asked.Load()
			return n, n > 2
		})
		b.net.mu.Lock()
		if b.net.aborted {
			t.Error("the peer is reset before all is sent")
		}
		b.net.mu.Unlock()
		sent.Store(true)
		b.wantOver(true, false)
	}
}
