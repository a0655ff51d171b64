// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// sockapiDiffers has the answers of TestSocketAPI that are different over SMC-R, because
// the unix socket in place of the TCP socket does not support them. docs/sockets.md
// explains each.
var sockapiDiffers = map[string]string{
	"reset_after_shutdown/client/recv": "b''",
}

// sockapi runs testdata/sockapi.py, with the client on host from and the server on A, and
// returns its answers.
func (l *lab) sockapi(from *netnstest.Host, port string, start func(h *netnstest.Host, argv ...string) *netnstest.Process) map[string][]string {
	l.t.Helper()
	script, err := filepath.Abs("testdata/sockapi.py")
	if err != nil {
		l.t.Fatal(err)
	}
	server := start(l.A, "python3", "-u", script, "server", port)
	client := start(from, "python3", "-u", script, "client", l.A.Addr(), port)
	answers := map[string][]string{}
	for _, p := range []*netnstest.Process{server, client} {
		if err := p.Wait(2 * time.Minute); err != nil {
			l.t.Errorf("%v\n%s", err, p.Log())
		}
		for line := range strings.Lines(p.Log()) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && strings.Count(k, "/") == 2 {
				answers[k] = append(answers[k], v)
			}
		}
		if l.t.Failed() {
			l.t.Fatalf("both programs:\n%s\n%s", server.Log(), client.Log())
		}
	}
	return answers
}

// TestSocketAPI compares the socket API over SMC-R with that over TCP (RFC 7609, appendix
// B): urgent data, options, flags, ways to close.
func TestSocketAPI(t *testing.T) {
	l := newLab(t, "python3")
	tcp := l.sockapi(l.B, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	smc := l.sockapi(l.B, "7002", l.under)
	sameAnswers(t, tcp, smc, sockapiDiffers)
}

// sameAnswers checks that the answers are those of TCP, except for those in differs.
func sameAnswers(t *testing.T, tcp, smc map[string][]string, differs map[string]string) {
	t.Helper()
	if len(tcp) < 150 {
		t.Errorf("only %d answers over TCP", len(tcp))
	}
	keys := slices.Sorted(maps.Keys(tcp))
	for k := range smc {
		if tcp[k] == nil {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		want := tcp[k]
		if d, ok := differs[k]; ok {
			want = strings.Split(d, ", ")
		}
		if got := smc[k]; !slices.Equal(got, want) {
			t.Errorf("%s\n\tTCP   %s\n\tSMC   %s", k, strings.Join(tcp[k], ", "), strings.Join(got, ", "))
		}
	}
}
