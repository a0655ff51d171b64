// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"time"
)

// decision is a connect() for which the launcher has not decided yet whether it
// answers it. Other calls on the socket wait for the decision: the connect()
// may have been interrupted, and the program may continue with other calls.
type decision struct {
	inode  uint64
	before *decision // of an earlier connect(), or nil
	done   chan struct{}
	over   bool // guarded by sockets.mu
}

// wait waits for the decision, at most lookPatience, because that call may have
// to wait for memory of the program.
func (d *decision) wait(ctx context.Context) {
	if d == nil {
		return
	}
	limit := time.NewTimer(lookPatience)
	defer limit.Stop()
	select {
	case <-d.done:
	case <-limit.C:
	case <-ctx.Done():
	}
}
