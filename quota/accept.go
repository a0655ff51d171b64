// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// The waits of Accept after failures: each is twice as long as the last one, from
// firstWait up to longWait.
const (
	firstWait = 5 * time.Millisecond
	longWait  = time.Second
)

// Accept calls accept in a loop, and serve with each connection that accept returns.
// It returns nil when ctx ends, and an error that matches [net.ErrClosed] when the
// listener is closed. After another error, such as a lack of descriptors, it logs a
// warning, waits and tries again.
func Accept[C any](ctx context.Context, accept func() (C, error), serve func(C), log *slog.Logger) error {
	wait := firstWait
	for {
		c, err := accept()
		switch {
		case err == nil:
			wait = firstWait
			serve(c)
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		}
		log.Warn("cannot accept connections for now", "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, longWait)
	}
}
