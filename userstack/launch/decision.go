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
	over   bool // guarded by supervisor.mu
}

// decides notes that a connect() on the socket is looked into.
func (s *supervisor) decides(inode uint64) *decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &decision{inode: inode, before: s.deciding[inode], done: make(chan struct{})}
	s.deciding[inode] = d
	s.nDeciding.Store(int64(len(s.deciding)))
	return d
}

// decided ends d, which may have ended.
func (s *supervisor) decided(d *decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.over {
		return
	}
	d.over, d.before = true, nil
	close(d.done)
	if s.deciding[d.inode] == d {
		delete(s.deciding, d.inode)
		s.nDeciding.Store(int64(len(s.deciding)))
	}
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
