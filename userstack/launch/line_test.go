// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestLine: which connection the next call of accept() gets. Names are those of hosts, with
// numbers in the order in which the connections came.
func TestLine(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct{ name, steps, want string }{
		{"one host", "a1 a2 a3 take a4 take take take", "a1 a2 a3 a4"},
		{"a host that floods", "a1 a2 a3 a4 a5 b1 take take take c1 take take take take", "a1 b1 a2 a3 c1 a4 a5"},
		{"again and again", "a1 a2 a3 a4 take b1 take take b2 take take take", "a1 a2 b1 a3 b2 a4"},
		{"first of all", "a1 a2 take b1 first:a1 take take take", "a1 a1 a2 b1"},
		{"one leaves", "a1 a2 a3 b1 drop:a2 take take take", "a1 b1 a3"},
		{"all leave", "a1 drop:a1 b1 a2 take take", "b1 a2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var q line
			all := map[string]*accepted{}
			names := map[*accepted]string{}
			var got []string
			for _, step := range strings.Fields(tt.steps) {
				verb, name, ok := strings.Cut(step, ":")
				switch {
				case step == "take":
					got = append(got, names[q.take()])
				case ok && verb == "drop":
					if !q.remove(all[name]) || q.remove(all[name]) {
						t.Errorf("%s was not there once", name)
					}
				case ok:
					q.addFirst(all[name])
				default:
					addr := netip.AddrFrom4([4]byte{10, 0, 0, step[0]})
					a := &accepted{remote: netip.AddrPortFrom(addr, uint16(step[1]))}
					all[step], names[a] = a, step
					q.add(a)
				}
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("%s, want %s", s, tt.want)
			}
			if q.len() != 0 || len(q.hosts) != 0 {
				t.Errorf("%d connections and %d hosts remain", q.len(), len(q.hosts))
			}
		})
	}
}

func BenchmarkLine(b *testing.B) {
	for _, n := range []int{16, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			var q line
			host := func(i int) *accepted {
				return &accepted{remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1)}
			}
			for range n {
				q.add(host(1))
			}
			a := host(2)
			for b.Loop() {
				q.add(a)
				q.remove(a)
			}
		})
	}
}
