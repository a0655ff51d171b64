// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import "testing"

// BenchmarkCalls prints, from within a launched program, what trapped calls
// cost: connections that become SMC, and native ones, which are continued.
func BenchmarkCalls(b *testing.B) {
	for name, stack := range map[string]*fakeStack{"smc": {}, "no peer": {noPeer: true}, "native": {notCandidate: true}} {
		b.Run(name, func(b *testing.B) {
			addr := echoServer(b, "tcp4", "127.0.0.1:0", "")
			for b.Loop() {
				res := launched(b, stack.fresh(), "", []string{probeEnv + "=latency"}, "/proc/self/exe", addr)
				if res.status != 0 {
					b.Fatalf("status %d\n%s", res.status, res.out)
				}
				b.Log(res.out)
			}
		})
	}
}
