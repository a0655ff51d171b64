// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
)

// cgroupName is the cgroup of services that were started on demand, at the top of the
// cgroup v2 tree. Such a service is for all programs of its network namespace. So it
// must not end with the cgroup of the program that started it, and its resources must
// not count for that cgroup.
const cgroupName = "smcr"

// errCgroup means that the cgroup of the services cannot be used.
var errCgroup = errors.New("no cgroup for the stack")

// openCgroup opens the cgroup of the services, and creates it if necessary.
func openCgroup() (*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: needs root", errCgroup)
	}
	top, err := cgroup.Top()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCgroup, err)
	}
	dir := filepath.Join(top, cgroupName)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: %w", errCgroup, err)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCgroup, err)
	}
	st, err := f.Stat()
	if err == nil {
		err = ours(dir, st)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errCgroup, err), f.Close())
	}
	return f, nil
}

// inCgroup makes the child of attr start in the cgroup of the services. The caller
// must call done after the start.
func inCgroup(attr *syscall.SysProcAttr) (done func(), err error) {
	f, err := openCgroup()
	if err != nil {
		return nil, err
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	return func() { _ = f.Close() }, nil
}

// sameCgroup reports whether the process pid is in the cgroup of this process.
func sameCgroup(pid int) (bool, error) {
	mine, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false, err
	}
	other, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && string(mine) == string(other), err
}
