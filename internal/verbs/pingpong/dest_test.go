// SPDX-License-Identifier: Apache-2.0

package pingpong

import (
	"testing"

	"smcr/internal/testing/codectest"
	"smcr/internal/verbs/rc"
	"smcr/smc"
)

// What ibv_rc_pingpong 44.0 sent on Linux 6.12, on device rxe0 with address 10.9.9.1.
// TestExchange of internal/testing/rdmainterop captured it.
const golden = "0000:000011:7a3188:00000000000000000000ffff0a090901\x00"

func dest() codectest.Codec[Dest] {
	return codectest.Codec[Dest]{
		Golden:  golden,
		Want:    Dest{QPN: 0x11, PSN: 0x7a3188, GID: smc.GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 14: 9, 15: 1}},
		Invalid: []int{0, 4, 5, 11, 12, 18, 19, 50},
		Parse:   ParseDest, Append: (*Dest).AppendTo,
	}
}

func TestDest(t *testing.T) { dest().Run(t) }

func FuzzParseDest(f *testing.F) { dest().Fuzz(f) }

// TestCheck checks that a wrong byte is found at every position.
func TestCheck(t *testing.T) {
	const size = 3*4096 + 5
	for _, client := range []bool{true, false} {
		for _, peer := range []string{"ours", "ibv_rc_pingpong"} {
			if client && peer != "ours" {
				continue // it sends back what it receives
			}
			p := &player{client: true, o: Options{Size: size, Check: true}}
			p.Conn = &rc.Conn{Buf: make([]byte, 2*size)}
			p.fill()
			if peer != "ours" {
				for i := range p.out() {
					if p.out()[i] = filler; i%page == 0 {
						p.out()[i] = 0
					}
				}
			}
			p.client = client
			copy(p.in(), p.out())
			if err := p.check(); err != nil {
				t.Errorf("client %v, peer %s: %v", client, peer, err)
			}
			for _, at := range []int{0, 2, page - 1, page, size - 1} {
				p.in()[at] ^= 0x10
				if err := p.check(); err == nil {
					t.Errorf("client %v, peer %s: wrong byte %d passes", client, peer, at)
				}
				p.in()[at] ^= 0x10
			}
		}
	}
}
