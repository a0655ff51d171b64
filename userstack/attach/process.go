// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/retry"
)

// A Process asks for a cgroup of its own.
type Process struct {
	PID int
	UID uint32
	// FD is a pidfd of it, or -1: then whatever process of the user has the number counts.
	FD int
	// Namespace is the cookie of its network namespace.
	Namespace uint64
}

// errGone means that a process has ended.
var errGone = fmt.Errorf("the process has ended: %w", syscall.ESRCH)

// hold checks that the process is one of the user, and has is and move know it again.
func (p *Process) hold() (done func(), err error) {
	if p.PID <= 0 {
		return nil, cgroup.ErrOutside // in another PID namespace
	}
	done = func() {}
	if p.FD < 0 {
		if p.FD, err = unix.PidfdOpen(p.PID, 0); err != nil {
			return nil, os.NewSyscallError("pidfd_open", err)
		}
		done = func() {
			unix.Close(p.FD)
			p.FD = -1
		}
	}
	uids, err := status(p.PID, "Uid:") // real, effective, saved, of the file system
	if err == nil && (len(uids) < 2 || uids[1] != p.UID) {
		err = fmt.Errorf("process %d is not one of user %d: %w", p.PID, p.UID, os.ErrPermission)
	}
	if err == nil {
		err = p.is()
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// is returns errGone if the number may be that of another process by now.
func (p *Process) is() error {
	poll := []unix.PollFd{{Fd: int32(p.FD), Events: unix.POLLIN}}
	n := 0
	err := retry.Interrupted(func() (err error) { n, err = unix.Poll(poll, 0); return err })
	if err == nil && n > 0 {
		return errGone
	}
	return os.NewSyscallError("poll", err)
}

// move moves it into the cgroup whose folder is dir. The kernel takes a number only. If the process has ended
// meanwhile, another one may have been moved, which goes to the cgroup of its parent: there it began.
func (p *Process) move(top, dir string) error {
	err := cgroup.Enter(dir, p.PID)
	if err != nil {
		return err
	}
	gone := p.is()
	if gone == nil {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		pid, _ := strconv.Atoi(f)
		parents, perr := status(pid, "PPid:")
		if perr != nil || len(parents) == 0 {
			continue // it has ended, too
		}
		to, perr := cgroup.Of(int(parents[0]))
		if perr == nil {
			perr = cgroup.Enter(top+to, pid)
		}
		err = errors.Join(err, perr)
	}
	return errors.Join(gone, err)
}

// Groups returns the supplementary groups of a process.
func Groups(pid int) ([]uint32, error) { return status(pid, "Groups:") }

// status returns the numbers of a line of /proc/PID/status.
func status(pid int, key string) (numbers []uint32, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, key)
		if !ok {
			continue
		}
		for _, f := range strings.Fields(rest) {
			n, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("process %d: %q: %w", pid, line, err)
			}
			numbers = append(numbers, uint32(n))
		}
		return numbers, nil
	}
	return nil, fmt.Errorf("process %d has no %q: %w", pid, key, os.ErrNotExist)
}

// userAttr has the user of a run whose cgroup belongs to another one: that of the stack.
const userAttr = "user.smcr.uid"

// noteUser notes the user of a run at the folder of its cgroup.
func noteUser(dir string, uid uint32) {
	_ = unix.Setxattr(dir, userAttr, strconv.AppendUint(nil, uint64(uid), 10), 0) // since Linux 5.7
}

// userOf returns the user of a run whose cgroup belongs to owner, and whether that was noted.
func userOf(dir string, owner uint32) (uid uint32, noted bool) {
	b := make([]byte, 16)
	n, err := unix.Getxattr(dir, userAttr, b)
	if err != nil {
		return owner, false
	}
	is, err := strconv.ParseUint(string(b[:n]), 10, 32)
	if err != nil || owner != 0 && uint32(is) != owner {
		return owner, false // nobody but root speaks for others
	}
	return uint32(is), true
}
