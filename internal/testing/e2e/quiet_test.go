// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// wantQuiet checks that the log of a stack has no warning and no error.
func wantQuiet(t testing.TB, who string, stack *netnstest.Process) {
	t.Helper()
	for line := range strings.Lines(stack.Log()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Errorf("%s: %s", who, line)
		}
	}
}

// TestQuiet: neither host warns about an orderly end of connections, of link groups that
// were idle, or of a stack.
func TestQuiet(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, l *lab, a, b *netnstest.Process)
	}{
		{"idle", func(t *testing.T, l *lab, _, _ *netnstest.Process) {
			if err := netnstest.Until(settleTime, func() error {
				for _, h := range []*netnstest.Host{l.A, l.B} {
					if n, _, err := l.groupConns(h); err != nil || n > 0 {
						return fmt.Errorf("%d link groups, %v", n, err)
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}},
		{"server's stack ends", func(t *testing.T, _ *lab, a, _ *netnstest.Process) { terminate(t, a) }},
		{"client's stack ends", func(t *testing.T, _ *lab, _, b *netnstest.Process) { terminate(t, b) }},
		{"both end", func(t *testing.T, _ *lab, a, b *netnstest.Process) {
			for _, p := range []*netnstest.Process{a, b} {
				if err := p.Signal(unix.SIGTERM); err != nil {
					t.Error(err)
				}
			}
			wantEnd(t, a)
			wantEnd(t, b)
		}},
	} {
		for _, held := range []bool{false, true} {
			name := tt.name
			if held {
				if name == "idle" {
					continue
				}
				name += " under connections"
			}
			t.Run(name, func(t *testing.T) {
				l := newLab(t)
				args := []string{"--log-level", "debug"}
				if tt.name == "idle" {
					args = append(args, "--group-idle", "1s")
				}
				a, b := l.serve(l.A, args...), l.serve(l.B, args...)
				l.wantWorks()
				if held {
					l.probeServer()
					l.held(3, "-busy")
				} else {
					l.wantNoConnections(l.A, l.B)
				}
				tt.end(t, l, a, b)
				time.Sleep(500 * time.Millisecond) // Real time: no warning follows on the other host.
				wantQuiet(t, "server", a)
				wantQuiet(t, "client", b)
			})
		}
	}
}
