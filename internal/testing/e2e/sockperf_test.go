// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"strconv"
	"testing"
)

// TestSockperf runs sockperf, which sends with sendto() and an address, to the end:
// ping-pong, and messages in one direction.
func TestSockperf(t *testing.T) {
	t.Parallel()
	l := newLab(t, "sockperf")
	l.under(l.A, "sockperf", "server", "--tcp", "-i", l.A.Addr(), "-p", "7000")
	if err := l.A.WaitListen(7000, startTime); err != nil {
		t.Fatal(err)
	}
	messages := regexp.MustCompile(`(?m)Total of (\d+) messages sent|SentMessages=(\d+); ReceivedMessages=(\d+)`)
	runs := [][]string{
		{"ping-pong", "-m", "100"},
		{"ping-pong", "-m", "20000", "--full-rtt"},
		{"throughput", "-m", "100"},
		{"throughput", "-m", "60000"},
	}
	if testing.Short() { // messages of both sizes, and both ways to send
		runs = runs[1:3]
	}
	for _, args := range runs {
		p := l.under(l.B, append([]string{"sockperf", args[0], "--tcp", "-i", l.A.Addr(), "-p", "7000", "-t", "1"}, args[1:]...)...)
		if err := p.Wait(commandTime); err != nil {
			t.Fatalf("sockperf %v: %v\n%s", args, err, p.Log())
		}
		n := 0
		for _, m := range messages.FindAllStringSubmatch(p.Log(), -1) {
			for _, s := range m[1:] {
				if v, err := strconv.Atoi(s); err == nil {
					n = max(n, v)
				}
			}
		}
		if n == 0 { // how many in a second is a matter of the machine
			t.Errorf("sockperf %v: %d messages\n%s", args, n, p.Log())
		}
		wantSummary(t, p.Log(), 1)
	}
}
