// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"smcr/internal/netnstest"
)

var localRE = regexp.MustCompile(`(?m)^smcr: \d+ connections? over SMC-R, (\d+) over TCP(?:, (\d+) local)?`)

// wantLocal wants the summary of smcr run -v in a log to tell of local connections,
// at least conns, and of none over TCP.
func wantLocal(t testing.TB, log string, conns int) {
	t.Helper()
	m := localRE.FindStringSubmatch(log)
	if m == nil {
		t.Errorf("no summary of smcr run -v in\n%s", log)
		return
	}
	local, _ := strconv.Atoi(m[2])
	if local < conns || m[1] != "0" {
		t.Errorf("%d local connections and %s over TCP, want at least %d and none:\n%s", local, m[1], conns, log)
	}
}

// wantIdle waits until a stack has no connection of a program any more.
func (l *lab) wantIdle(h *netnstest.Host) {
	l.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		rows, err := l.rows(h, "connection")
		if err != nil {
			return netnstest.Stop(err)
		}
		if len(rows) > 0 {
			return fmt.Errorf("connections listed: %v", rows)
		}
		return nil
	}); err != nil {
		l.t.Error(err)
	}
}

// TestLocalSocketAPI asks the socket API the same questions of local connections
// and of TCP.
func TestLocalSocketAPI(t *testing.T) {
	l := newLab(t, "python3")
	tcp := l.sockapi(l.A, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	stack := l.serve(l.A)
	local := l.sockapi(l.A, "7002", l.under)
	sameAnswers(t, tcp, local, sockapiDiffers)
	terminate(t, stack)
}
