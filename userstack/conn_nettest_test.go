// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"smcr/internal/testing/testkind"
	"smcr/userstack/simfabric"
)

// TestNetConn runs the suite of golang.org/x/net on SMC-R connections, from either end.
// The suite makes subtests, which a bubble does not allow, so it runs in real time.
func TestNetConn(t *testing.T) {
	testkind.System(t)
	for name, c := range map[string]bedConfig{
		"OneLink":    {},
		"TwoLinks":   {devices: 2, fabric: simfabric.Config{Seed: 3, Delay: 20 * time.Microsecond, Jitter: 50 * time.Microsecond, Loss: 0.01}},
		"EyeCatcher": {server: func(c *Config) { c.EyeCatcher = true }},
		"SmallBuffers": {
			client: func(c *Config) { c.RecvBuf, c.SendBuf = 16<<10, 4<<10 },
			server: func(c *Config) { c.RecvBuf, c.SendBuf = 16<<10, 4<<10 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c)
			swap := false
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := b.connect()
				c1, c2 = c, s
				if swap = !swap; swap {
					c1, c2 = s, c
				}
				return c1, c2, func() { c.Close(); s.Close() }, nil
			})
		})
	}
}
