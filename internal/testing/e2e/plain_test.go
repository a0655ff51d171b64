// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// TestOneSideOnly: a host without SMC is served in plain TCP, without a delay and without
// SMC messages from it.
func TestOneSideOnly(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	for _, test := range []struct {
		name           string
		server, client bool // whether it runs under smcr run
	}{
		{"client only", false, true},
		{"server only", true, false},
		{"none", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "tshark")
			start := func(under bool, h *netnstest.Host, argv ...string) *netnstest.Process {
				if under {
					return l.under(h, argv...)
				}
				return h.Go(t, argv[0], argv[1:]...)
			}
			server := start(test.server, l.A, bin("webserver"), "-listen", l.A.Addr()+":8080")
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			w := l.watch()
			client := start(test.client, l.B, bin("webclient"), "-c", "3", fmt.Sprintf("http://%s:8080/bytes/%d", l.A.Addr(), size))
			if err := client.Wait(time.Minute); err != nil {
				t.Errorf("%v\n%s", err, client.Log())
			}
			s := w.stop(t)
			s.wantPlain(t, 3, 3*size)
			// The client sends the SYN. If it uses SMC, the SYN has the option.
			if want := s.SYNs; test.client && s.SMCSYNs != want {
				t.Errorf("the SMC option in %d of %d SYN", s.SMCSYNs, want)
			}
			if !test.client && s.SMCSYNs != 0 {
				t.Errorf("the SMC option in %d SYN of a client without smcr run", s.SMCSYNs)
			}
			terminate(t, server)
			l.wantNoConnections(l.A, l.B)
		})
	}
}
