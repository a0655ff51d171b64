// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestLinkFailedQuietly: after DELETE LINK for all links the peer closes its
// queue pairs, and what it has not acknowledged by then fails. That is no fault;
// before DELETE LINK it is.
func TestLinkFailedQuietly(t *testing.T) {
	for _, ending := range []bool{false, true} {
		var log bytes.Buffer
		r := newRig(t, smc.Server, func(c *Config) {
			noTest(c)
			c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		r.open()
		if ending {
			r.g.Terminate(r.s.now, wire.DeleteLinkProgram)
		}
		r.g.LinkFailed(r.s.now, r.link, errors.New("remote operation error"))
		if r.g.phase != phaseDead {
			t.Error("the group lives without a link")
		}
		if warned := strings.Contains(log.String(), "link failed"); warned == ending {
			t.Errorf("ending %v: log %q", ending, &log)
		}
	}
}
