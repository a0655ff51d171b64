// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/reflector"
)

// startTime bounds the start of a stack, and of the reflector.
const startTime = time.Minute

// loop has the connections of the first host with itself go by the second one, where a reflector
// runs as the job does: over TCP, or under smcr run. Then both hosts have a stack, of which the logs are files
// that begin with log. All ends with the hosts.
func (r *Runner) loop(ctx context.Context, pair *netnstest.Pair, m Mode, log string) error {
	if err := reflector.Prepare(ctx, pair); err != nil {
		return fmt.Errorf("suites: %w", err)
	}
	argv, err := guest.Program(ctx, "smcr/internal/testing/programs/reflector")
	if err != nil {
		return fmt.Errorf("suites: %w", err)
	}
	line := []string{argv}
	if m.Flags != nil {
		for _, h := range []*netnstest.Host{pair.A, pair.B} {
			name := log + "-stack-a.log"
			if h == pair.B {
				name = log + "-stack-b.log"
			}
			// Another device has the SYNs that wait for the reflector, which are not its own.
			if err := r.background(ctx, h, name, "msg=serving", r.smcr, "serve", "--netdev", h.Links[0].Name); err != nil {
				return err
			}
		}
		line = slices.Concat([]string{r.smcr, "run"}, m.Flags, []string{"--"}, line)
	}
	return r.background(ctx, pair.B, log+"-reflector.log", "reflecting", line...)
}

// background starts a program whose output is a file, and waits until it has printed a line with ready.
func (r *Runner) background(ctx context.Context, h *netnstest.Host, log, ready string, argv ...string) error {
	f, err := os.Create(log)
	if err != nil {
		return fmt.Errorf("suites: %w", err)
	}
	defer f.Close()
	cmd := h.Command(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	p, err := h.Start(cmd)
	if err != nil {
		return err
	}
	return netnstest.Until(startTime, func() error {
		b, err := os.ReadFile(log)
		if err == nil && strings.Contains(string(b), ready) {
			return nil
		}
		select {
		case <-p.Done():
			return netnstest.Stop(fmt.Errorf("suites: %v ended, and did not print %q:\n%s", argv, ready, b))
		default:
			return fmt.Errorf("suites: %v has not printed %q:\n%s", argv, ready, b)
		}
	})
}
