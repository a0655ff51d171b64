// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"smcr/internal/cgroup"
	"smcr/quota"
	"smcr/userstack/attach"
	"smcr/userstack/divert"
)

// boundary is the part of a Service that takes the connections of programs at the devices of the host, and carries them.
// Programs keep their sockets: see package divert.
type boundary struct {
	s        *Service
	d        *divert.Diverter
	attached *attach.Table
	top      string // where the cgroup tree is
	whole    uint64 // the number of Config.Cgroup, or 0
	wholeDir string
	tallies  tallies
	deciding deciding
	shorts   *shorts
	places   places

	recvBuf atomic.Int64 // of a new socket of the stack's namespace; 0: not known
}

// openBoundary begins to take connections. It must be called by a thread of the network namespace. If the process lacks a
// right, or the kernel a feature, the service goes on without: Lacks says so.
func (s *Service) openBoundary() error {
	w := &boundary{s: s, tallies: tallies{of: map[uint64]*tally{}}, deciding: deciding{of: map[*divert.Flow]decision{}}, shorts: newShorts()}
	err := w.open()
	if err == nil {
		s.boundary = w
		return nil
	}
	if cerr := w.close(); cerr != nil || !(divert.Lacks(err) || errors.Is(err, cgroup.ErrNoTree)) || s.cfg.Predecessor != nil {
		return errors.Join(err, cerr)
	}
	s.lacks = err
	s.log.Warn("the stack cannot take connections of programs at the devices, so they stay TCP", "err", err)
	return nil
}

// perUser is divert.Config.PerUser.
func perUser(c *Config) int {
	n := c.Stack.Limits.UserConns
	// A connection has four descriptors: outer and inner, and the stack's of both.
	if fds := c.UserFDs / 4; fds > 0 && (n == 0 || fds < n) {
		n = fds
	}
	return n
}

// Lacks returns why the service does not take connections of programs, or nil.
func (s *Service) Lacks() error { return s.lacks }

func (w *boundary) open() (err error) {
	c, g := &w.s.cfg, w.s.in.Guard()
	w.wholeDir = c.Cgroup
	if w.top, err = cgroup.Top(); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	if w.d, err = divert.New(divert.Config{Handle: w.handle, PerUser: perUser(c), Subordinates: quota.Subordinates, Drained: c.Predecessor != nil, Log: w.s.log, Guard: g}); err != nil {
		return err
	}
	if c.Cgroup != "" {
		if w.whole, err = cgroup.ID(c.Cgroup); err != nil {
			return fmt.Errorf("service: the cgroup of the programs: %w", err)
		}
		if err := w.d.Attach(w.whole, divert.Does{Connect: true, Accept: true}); err != nil {
			return err
		}
	}
	if w.attached, err = attach.New(attach.Config{Top: w.top, Namespace: w.s.netns, Boundary: w, MaxRuns: c.UserRuns, Log: w.s.log, Guard: g}); err != nil {
		return err
	}
	if err := w.find(); err != nil {
		return err
	}
	w.s.in.ListAlso(w.list)
	w.followPlaces()
	return w.d.Follow(func(name string) bool { return len(c.Stack.NetDevs) == 0 || slices.Contains(c.Stack.NetDevs, name) })
}

// find attaches the cgroups of programs under smcr run that another stack has made.
func (w *boundary) find() error {
	if err := w.attached.Find(); err != nil {
		return fmt.Errorf("service: cgroups of programs that run: %w", err)
	}
	return nil
}

// settleTime is how long a service that ends waits for connections that are being made.
const settleTime = 200 * time.Millisecond

// settle has new connections be TCP, and waits a moment for those that are being made.
func (w *boundary) settle() {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	if err := w.d.Settle(ctx); err != nil {
		w.s.log.Warn("connections that are being made may be lost", "err", err)
	}
}

// close resets the connections that are left.
func (w *boundary) close() (err error) {
	if w == nil {
		return nil
	}
	w.places.close()
	if w.attached != nil {
		err = w.attached.Close()
	}
	if w.d != nil {
		err = errors.Join(err, w.d.Close())
	}
	return err
}

// busy reports whether there are programs that use the stack, or may do so. After a takeover, those with connections do.
func (w *boundary) busy() bool {
	if w == nil {
		return false
	}
	may := w.whole != 0 || len(w.attached.Entries()) > 0
	return may && !w.s.succession.handedOver() || w.d.Busy()
}
