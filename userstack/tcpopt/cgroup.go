// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
)

// cgroupDir is an open directory of a cgroup v2 tree.
type cgroupDir struct {
	name string // for messages
	file *os.File
}

func (d *cgroupDir) fd() int      { return int(d.file.Fd()) }
func (d *cgroupDir) Close() error { return d.file.Close() }

// openCgroup opens the directory path. If path is empty, it opens the root of the cgroup
// v2 tree at any of its mounts (with version 1, often /sys/fs/cgroup/unified), or in a
// private mount.
func openCgroup(path string) (*cgroupDir, error) {
	if path != "" {
		return openCgroupPath(path)
	}
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("tcpopt: find the cgroup v2 mount: %w", err)
	}
	defer f.Close()
	mounts, err := parseMountInfo(f)
	if err != nil {
		return nil, fmt.Errorf("tcpopt: read /proc/thread-self/mountinfo: %w", err)
	}
	for _, m := range mounts {
		if m.root != "/" {
			continue
		}
		// Another file system may be mounted over this one.
		if d, err := openCgroupPath(m.point); err == nil {
			return d, nil
		}
	}
	d, mountErr := mountCgroup()
	if mountErr == nil {
		return d, nil
	}
	// Containers that share the cgroup namespace of the host have a bind mount of the
	// part of the tree that has the container.
	for _, m := range mounts {
		if d, err := openCgroupPath(m.point); err == nil {
			return d, nil
		}
	}
	return nil, mountErr
}

func openCgroupPath(path string) (*cgroupDir, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("%w: cannot open the cgroup: %w", ErrNotPermitted, err)
		}
		return nil, fmt.Errorf("tcpopt: open the cgroup: %w", err)
	}
	return newCgroupDir(path, f)
}

func newCgroupDir(name string, f *os.File) (*cgroupDir, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("tcpopt: statfs %s: %w", name, err), f.Close())
	}
	if int64(st.Type) != unix.CGROUP2_SUPER_MAGIC {
		return nil, errors.Join(fmt.Errorf("tcpopt: %s is not a cgroup v2 directory", name), f.Close())
	}
	return &cgroupDir{name: name, file: f}, nil
}

// mountCgroup returns the root of the cgroup v2 tree in a mount that belongs to no mount
// namespace. The mount ends when the directory is closed.
func mountCgroup() (*cgroupDir, error) {
	f, err := cgroup.OpenTop()
	if err != nil {
		return nil, mountError(err)
	}
	return newCgroupDir(f.Name(), f)
}

func mountError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: no cgroup v2 is mounted, and mounting one needs CAP_SYS_ADMIN: mount -t cgroup2 none /sys/fs/cgroup/unified: %w", ErrNotPermitted, err)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: no cgroup v2: %w", ErrUnsupportedKernel, err)
	}
	return fmt.Errorf("tcpopt: mount cgroup v2: %w", err)
}

// mount is a cgroup v2 line of /proc/PID/mountinfo.
type mount struct {
	root  string // directory of the tree that is mounted
	point string // mount point
}

// parseMountInfo returns the cgroup v2 mounts in the order of the file
// (proc_pid_mountinfo(5)). It ignores invalid lines.
func parseMountInfo(r io.Reader) ([]mount, error) {
	var mounts []mount
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20) // overlay mounts have long lines
	for sc.Scan() {
		fields, super, ok := strings.Cut(sc.Text(), " - ")
		if !ok {
			continue
		}
		f := strings.Fields(fields)
		if fsType, _, _ := strings.Cut(super, " "); fsType != "cgroup2" || len(f) < 5 {
			continue
		}
		mounts = append(mounts, mount{root: unescape(f[3]), point: unescape(f[4])})
	}
	return mounts, sc.Err()
}

// unescape replaces the octal escapes of /proc files, such as \040 for a space.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
