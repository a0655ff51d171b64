// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/nl"
	"smcr/userstack/attach"
	"smcr/userstack/divert"
)

var _ nl.Attacher = continued{}

// Attachments implements nl.Attacher.
func (c continued) Attachments(ctx context.Context) ([]nl.Attachment, error) {
	if c.boundary == nil {
		return nil, nl.ErrNotSupported
	}
	c.settle(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	of, err := c.boundary.outcomes()
	if err != nil {
		return nil, err
	}
	var all []nl.Attachment
	for _, e := range c.boundary.attached.Entries() {
		all = append(all, attachment(e, of[e.Cgroup]))
	}
	return all, nil
}

// Attach implements nl.Attacher.
func (c continued) Attach(_ context.Context, a nl.Attachment) error {
	if c.boundary == nil {
		return nl.ErrNotSupported
	}
	return c.boundary.attached.Attach(attach.Entry{Path: a.Path, UID: a.UID, Does: divert.Does{Connect: a.Connect, Accept: a.Accept, Always: a.Always}})
}

// Detach implements nl.Attacher.
func (c continued) Detach(_ context.Context, path string) error {
	if c.boundary == nil {
		return nl.ErrNotSupported
	}
	return c.boundary.attached.Detach(path)
}

// Enter implements nl.Attacher.
func (c continued) Enter(_ context.Context, who nl.Peer, always bool) (nl.Attachment, error) {
	if c.boundary == nil {
		return nl.Attachment{}, nl.ErrNotSupported
	}
	if may := c.boundary.s.cfg.Authorize; may != nil {
		groups, err := attach.Groups(int(who.PID))
		if err != nil {
			return nl.Attachment{}, err
		}
		if err := may(Caller{UID: who.UID, GID: who.GID, Groups: groups}); err != nil {
			return nl.Attachment{}, errors.Join(err, os.ErrPermission)
		}
	}
	e, err := c.boundary.attached.Enter(&attach.Process{PID: int(who.PID), UID: who.UID, FD: -1, Namespace: c.boundary.s.netns}, always)
	if errors.Is(err, attach.ErrNoRight) {
		if a, ok := c.boundary.attachedAlready(who); ok {
			return a, nil
		}
	}
	return attachment(e, nl.Outcomes{}), err
}

// attachedAlready returns the cgroup of a process if its new connections use SMC there, without a run: in a container whose tree
// of cgroups nobody can change, for example.
func (w *boundary) attachedAlready(who nl.Peer) (nl.Attachment, bool) {
	own, err := cgroup.Of(int(who.PID))
	if err != nil {
		return nl.Attachment{}, false
	}
	id, err := cgroup.ID(path.Join(w.top, own))
	if err != nil {
		return nl.Attachment{}, false
	}
	does := w.within()[id]
	return nl.Attachment{Path: own, Cgroup: id, UID: who.UID, Connect: does.Connect, Accept: does.Accept}, does.Connect && does.Accept
}

// Listen implements nl.Attacher.
func (c continued) Listen(_ context.Context, who nl.Peer, fds []int) error {
	if c.boundary == nil {
		return nl.ErrNotSupported
	}
	e, err := c.boundary.attached.RunOf(&attach.Process{PID: int(who.PID), UID: who.UID, FD: -1, Namespace: c.boundary.s.netns})
	if err != nil {
		return err
	}
	var errs []error
	for _, fd := range fds {
		if ns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil && ns != c.boundary.s.netns { // since Linux 5.14
			errs = append(errs, fmt.Errorf("a listening socket of another network namespace: %w", unix.EXDEV))
			continue
		}
		errs = append(errs, c.boundary.d.Listen(fd, divert.Owner{Cgroup: e.Cgroup, UID: who.UID}))
	}
	return errors.Join(errs...)
}

func attachment(e attach.Entry, o nl.Outcomes) nl.Attachment {
	return nl.Attachment{Path: e.Path, Cgroup: e.Cgroup, UID: e.UID, Run: e.Run, Connect: e.Connect, Accept: e.Accept, Always: e.Always, Outcomes: o}
}

// Attach implements attach.Boundary.
func (w *boundary) Attach(cgroup uint64, what divert.Does) error {
	w.tallies.add(cgroup)
	return w.d.Attach(cgroup, what)
}

// Detach implements attach.Boundary.
func (w *boundary) Detach(cgroup uint64) error {
	w.tallies.drop(cgroup)
	return w.d.Detach(cgroup)
}

var _ attach.Boundary = (*boundary)(nil)
