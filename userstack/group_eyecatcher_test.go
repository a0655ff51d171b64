// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"slices"
	"testing"

	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// noEyecatcherBits are the flags of CONFIRM LINK by which a sender reports that it has no
// eye catchers. RFC 7609 reserves these bits.
const noEyecatcherBits = 0x03

// TestEyeCatcher checks the messages of stacks that agree on eye catchers, or on none.
// Each connection carries several windows of data.
func TestEyeCatcher(t *testing.T) {
	for _, tt := range []struct {
		name   string
		server bool // configured to have eye catchers
		rfc    bool // the client does not receive the bits, as from a server with eye catchers
		want   bool
	}{
		{"AsLinux", false, false, false},
		{"ServerHas", true, false, true},
		{"ClientThatKnowsNothingElse", false, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var flags []byte // the flags of CONFIRM LINK
				var cursors []wire.Cursor
				alter := func(_, _ simfabric.Place, msg []byte) ([]byte, bool) {
					if m, err := wire.ParseConfirmLink(msg); err == nil {
						if tt.rfc && !m.Reply {
							msg = slices.Clone(msg)
							msg[3] &^= noEyecatcherBits
						}
						flags = append(flags, msg[3]&noEyecatcherBits)
					} else if m, err := wire.ParseCDC(msg); err == nil {
						cursors = append(cursors, m.Prod, m.Cons)
					}
					return msg, true
				}
				b := newBed(t, bedConfig{
					fabric: simfabric.Config{Alter: alter},
					server: func(c *Config) { c.EyeCatcher = tt.server },
				})
				for range 2 { // the second connection gets elements that were used before
					c, s := b.connect()
					b.exchange(c, s, pattern(1, 300_000))
					b.exchange(s, c, pattern(2, 300_000))
					b.finish(c, s)
				}
				want, start := []byte{noEyecatcherBits, noEyecatcherBits}, uint32(0)
				if tt.want {
					want, start = []byte{0, 0}, 4
				}
				if !slices.Equal(flags, want) {
					t.Errorf("bits of CONFIRM LINK and its reply %x, want %x", flags, want)
				}
				least := slices.MinFunc(cursors, func(a, b wire.Cursor) int { return int(a.Count) - int(b.Count) })
				if least.Count != start {
					t.Errorf("smallest cursor %d, want %d", least.Count, start)
				}
				last := slices.MaxFunc(cursors, func(a, b wire.Cursor) int { return int(a.Wrap) - int(b.Wrap) })
				// 300,000 bytes over elements of 65536 bytes.
				if at := 300_000 % (65536 - start); last.Wrap != 4 || !slices.Contains(cursors, wire.Cursor{Wrap: 4, Count: start + at}) {
					t.Errorf("last wrap %d, no cursor 4:%d", last.Wrap, start+at)
				}
			})
		})
	}
}
