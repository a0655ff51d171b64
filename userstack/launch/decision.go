// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"time"
)

// decision is a connect() of which it is not known yet whether the launcher
// answers it: other calls that name the socket wait for that. The program may
// have been interrupted in it meanwhile, and go on.
type decision struct {
	inode  uint64
	before *decision // of an earlier connect(), or nil
	done   chan struct{}
	over   bool // guarded by sockets.mu
}

// wait waits until it is decided, for lookPatience at most: that call may have to
// wait for its memory.
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
