// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Waits of Accept after a failure: each is twice the one before.
const (
	firstWait = 5 * time.Millisecond
	longWait  = time.Second
)

// Accept calls accept, and serve with each connection that it returns, until
// ctx ends, which is no error, or the listener is closed. Whatever else goes
// wrong passes: a process that is out of descriptors gets some back.
func Accept[C any](ctx context.Context, accept func() (C, error), serve func(C), log *Log) error {
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
