// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
)

// stalled sets StallTime of a stack.
func stalled(d time.Duration) func(*userstack.Config) {
	return func(c *userstack.Config) { c.StallTime = d }
}

// TestPeerStandsStill: a host that neither sends nor receives for StallTime of its peer
// keeps its connections, whether data is under way or only TEST LINK. Each byte arrives once.
func TestPeerStandsStill(t *testing.T) {
	for _, tt := range []struct{ setting, still time.Duration }{
		{0, time.Second}, {0, 6 * time.Second}, {0, userstack.DefaultStallTime}, {30 * time.Second, 30 * time.Second},
		{time.Minute, time.Minute},
	} {
		for _, links := range []int{1, 2} {
			if testing.Short() && (links == 2 || tt.still > 10*time.Second) {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v/%d links", tt.setting, tt.still, links), func(t *testing.T) {
				bedtest.Bubble(t, func(t *testing.T) {
					b := newBed(t, bedConfig{devices: links, client: stalled(tt.setting), server: stalled(tt.setting)})
					var under []*traffic
					for i := range uint64(4) {
						c, s := b.connect()
						under = append(under, startTraffic(t, c, s, i))
					}
					idle, idleS := b.connect()
					for _, who := range []string{"client", "server"} {
						h, _ := b.side(who)
						time.Sleep(time.Second)
						h.SetVanished(true)
						time.Sleep(tt.still)
						h.SetVanished(false)
						time.Sleep(min(2*tt.still, 5*time.Second)) // data flows again
					}
					for _, x := range under {
						if err := x.end(); err != nil {
							t.Error(err)
						}
						x.c.Close()
						x.s.Close()
					}
					// Now only TEST LINK is under way, which begins after 30 s.
					time.Sleep(29500 * time.Millisecond)
					b.sh.SetVanished(true)
					time.Sleep(tt.still)
					b.sh.SetVanished(false)
					time.Sleep(tt.still)
					b.exchange(idle, idleS, []byte("hello"))
					b.finish(idle, idleS)
				})
			})
		}
	}
}

// TestPeerStandsStillTooLong: a stack with a shorter StallTime ends the connections of the
// same peer.
func TestPeerStandsStillTooLong(t *testing.T) {
	bedtest.Bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{client: stalled(time.Second), server: stalled(time.Second)})
		c, s := b.connect()
		x := startTraffic(t, c, s, 1)
		time.Sleep(time.Second)
		start := time.Now()
		b.sh.SetVanished(true)
		x.wg.Wait()
		if d := time.Since(start); d < time.Second || d > 16*time.Second/7+500*time.Millisecond {
			t.Errorf("the connection ended after %v", d)
		}
		if err := errors.Join(x.errs[:]...); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want ECONNRESET", err)
		}
		c.Close()
		s.Close()
	})
}
