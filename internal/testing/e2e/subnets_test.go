// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestTwoSubnets: two hosts are connected by two networks. One pnetid for all their netdevs gives the
// link group a link in each. iperf3 goes on when the network fails in which its TCP connections are.
// Without a pnetid there is one link, because nobody has said that the second network is for this.
func TestTwoSubnets(t *testing.T) {
	t.Parallel()
	for _, pnetid := range []bool{false, true} {
		t.Run(fmt.Sprintf("pnetid %v", pnetid), func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, "iperf3")
			l := &lab{Pair: netnstest.New(t, netnstest.Options{Links: 2}), t: t}
			hosts := []*netnstest.Host{l.A, l.B}
			for _, h := range hosts {
				l.serveAsIs(h)
				if pnetid {
					for _, link := range h.Links {
						l.smcr(h, "--backend", "user", "pnet", "add", "NET1", "--netdev", link.Name)
					}
				}
			}
			l.awaitActive(hosts...)
			server := l.under(l.A, "iperf3", "-s", "-1", "--forceflush")
			if err := server.WaitOutput("Server listening", startTime); err != nil {
				t.Fatal(err)
			}
			client := l.under(l.B, "iperf3", "-c", l.A.Addr(), "-t", "16", "-b", "50M", "-P", "4", "--forceflush")
			testkind.Eventually(t, "iperf3 sends for three seconds", func() (any, bool) {
				log := client.Log()
				return log, len(iperfSends(log, 2)) == 4
			})
			for _, h := range hosts {
				rows, err := l.rows(h, "link")
				if err != nil {
					t.Fatal(err)
				}
				var gids, want []string
				for _, r := range rows {
					gids = append(gids, r["gid"].(string))
				}
				for i, link := range h.Links {
					if i == 0 || pnetid {
						want = append(want, smc.GID(link.IPv4.As16()).String())
					}
				}
				if slices.Sort(gids); !slices.Equal(gids, want) {
					t.Errorf("%s has links at %q, want %q", h.Name, gids, want)
				}
			}
			if !pnetid {
				client.Kill()
				return
			}
			if err := l.Cut(0); err != nil {
				t.Fatal(err)
			}
			if err := client.Wait(time.Minute); err != nil {
				t.Fatalf("%v\n%s", err, client.Log())
			}
			wantSummary(t, client.Log(), 5)
			// The links share the four connections. All of them send again before the end.
			for _, second := range []int{13, 14} {
				if n := len(iperfSends(client.Log(), second)); n != 4 {
					t.Errorf("second %d: %d connections send", second, n)
				}
			}
		})
	}
}

// iperfInterval is what iperf3 says of one connection and about a second, of which the sum of all is not one.
var iperfInterval = regexp.MustCompile(`(?m)^\[ *(\d+)\] +(\d+\.\d+)-\d+\.\d+ +sec +(\d+\.?\d*) \w*Bytes`)

// iperfSends returns the connections that send in the interval that begins next to a second, by the log of iperf3. A busy machine
// has intervals that begin a little later.
func iperfSends(log string, second int) (conns []string) {
	for _, m := range iperfInterval.FindAllStringSubmatch(log, -1) {
		begin, _ := strconv.ParseFloat(m[2], 64)
		if sent, _ := strconv.ParseFloat(m[3], 64); sent > 0 && int(math.Round(begin)) == second && !slices.Contains(conns, m[1]) {
			conns = append(conns, m[1])
		}
	}
	return conns
}
