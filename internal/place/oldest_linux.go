// SPDX-License-Identifier: Apache-2.0

package place

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// endTime is how long a stack may take to end in order after SIGTERM.
	endTime = 6 * time.Second
	// killTime is how long the kernel may take for a process after SIGKILL.
	killTime = time.Second
)

// MakePart is Part. If there is none, it ends the oldest process that has handed over, so that
// processes whose connections never end do not prevent the next takeover. ended is called
// with the number of such a process, before it ends.
func (c *Claim) MakePart(ctx context.Context, ended func(pid int)) (int, error) {
	return c.makePart(ctx, ended, endTime)
}

// makePart is MakePart for a process that may take so long to end in order.
func (c *Claim) makePart(ctx context.Context, ended func(pid int), inOrder time.Duration) (int, error) {
	n, err := c.Part()
	if !errors.Is(err, ErrParts) {
		return n, err
	}
	h, ok := c.oldest()
	if !ok {
		return 0, err
	}
	// The number of the process may belong to another one meanwhile.
	p, perr := unix.PidfdOpen(int(h.pid), 0)
	if perr != nil && !errors.Is(perr, unix.ESRCH) {
		return 0, errors.Join(err, os.NewSyscallError("pidfd_open", perr))
	}
	if perr == nil {
		defer unix.Close(p)
		if me, serr := self(); serr != nil || h.dead(me) {
			p = -1
		}
	}
	for _, step := range []struct {
		sig  unix.Signal
		wait time.Duration
	}{{unix.SIGTERM, inOrder}, {unix.SIGKILL, killTime}} {
		if perr == nil && p >= 0 {
			if step.sig == unix.SIGTERM {
				ended(int(h.pid))
			}
			if serr := unix.PidfdSendSignal(p, step.sig, nil, 0); serr != nil && !errors.Is(serr, unix.ESRCH) {
				return 0, errors.Join(err, os.NewSyscallError("pidfd_send_signal", serr))
			}
		}
		for end := time.Now().Add(step.wait); time.Now().Before(end); {
			if n, err = c.Part(); !errors.Is(err, ErrParts) {
				return n, err
			}
			select {
			case <-ctx.Done():
				return 0, errors.Join(err, ctx.Err())
			case <-time.After(10 * takeTick):
			}
		}
	}
	return 0, err
}

// oldest returns the process that has handed over, has a part, and was started first.
func (c *Claim) oldest() (first holder, ok bool) {
	me, err := self()
	if err != nil {
		return first, false
	}
	for n := range Parts {
		// A stack that has not handed over has no socket of this name.
		if _, err := os.Lstat(filepath.Join(c.dir, endingName(n))); err != nil {
			continue
		}
		f, err := os.OpenFile(partName(c.dir, n), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		_, all, err := readHolders(f)
		_ = f.Close()
		if err != nil || len(all) != 1 {
			continue
		}
		h := all[0]
		known := h.pidns == me.pidns && h.timens == me.timens && h != me && h.pid > 1
		if known && (!ok || h.start < first.start) {
			first, ok = h, true
		}
	}
	return first, ok
}
