// SPDX-License-Identifier: Apache-2.0

package relay

import "testing"

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
