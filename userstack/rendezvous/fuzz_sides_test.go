// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"math/rand/v2"
	"testing"
	"time"
)

// choices makes the choices of a simulation with the bytes of the fuzzer. When they are used
// up, each choice is the last possible one, with which nothing fails.
type choices struct{ left []byte }

func (c *choices) IntN(n int) int { return int(c.Int64N(int64(n))) }

func (c *choices) Int64N(n int64) int64 {
	if len(c.left) == 0 {
		return n - 1
	}
	v := int64(c.left[0])
	c.left = c.left[1:]
	if n <= 256 {
		return v % n
	}
	return v * (n - 1) / 255 // times: all of the range, in 256 steps
}

// FuzzBothSides lets a client and a server rendezvous, with the delays, failures and ends of
// the fuzzer's choice. The process of a host may stand still for up to ten seconds, and bytes
// on the TCP connection may change or get lost. Each machine must end as it should (see
// ledger.saw). If TCP carried the bytes as they were sent, both must agree on the outcome.
func FuzzBothSides(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		in := make([]byte, 80)
		for i := range in {
			in[i] = byte(r.Uint32())
		}
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &choices{in}
		w := newSimWorld(c)
		if c.IntN(4) == 0 {
			w.tamper = func(b []byte) []byte {
				switch c.IntN(4) {
				case 0:
					b[c.IntN(len(b))] ^= byte(c.IntN(256))
				case 1:
					b = b[:c.IntN(len(b))]
				}
				return b
			}
		}
		for i, s := range w.sides {
			s.delay = time.Duration(c.Int64N(int64(3 * time.Second)))
			if c.IntN(4) == 0 {
				at, d := w.some(5*time.Second), w.some(10*time.Second)
				w.after(at, func() { s.stands = w.now.Add(d) })
			}
			if c.IntN(8) == 0 { // a host has lost its link group, or the peer has
				w.known[i] = !w.known[i]
			}
		}
		err := w.run()
		if w.tamper == nil {
			err = cmp.Or(err, w.agree())
		}
		if err != nil {
			for _, n := range w.note {
				t.Log(n)
			}
			t.Fatal(err)
		}
	})
}
