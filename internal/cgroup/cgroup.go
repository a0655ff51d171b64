// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrOutside means that a process is in no cgroup that this process can see.
var ErrOutside = errors.New("the process is outside of the cgroup tree of this one")

// ErrNoTree means that this process sees no cgroup v2 tree as a whole.
var ErrNoTree = errors.New("no cgroup v2 tree is mounted")

// Top returns where the cgroup v2 tree is mounted. Where it is not, as below 'ip netns exec', which mounts a /sys of its
// own, a process that may mount it sees it by a mount that nobody else has: then the path is one for this process only.
func Top() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	top, err := parseTop(f)
	if !errors.Is(err, ErrNoTree) {
		return top, err
	}
	if top, merr := ownPath(); merr == nil {
		return top, nil
	}
	return "", err
}

// parseTop finds the mount point of the whole cgroup v2 tree in mountinfo (proc_pid_mountinfo(5)).
func parseTop(r io.Reader) (string, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		mount, source, ok := strings.Cut(lines.Text(), " - ")
		// ID, parent's ID, device, root, mount point, options.
		m, s := strings.Fields(mount), strings.Fields(source)
		if ok && len(m) > 5 && len(s) > 0 && s[0] == "cgroup2" && m[3] == "/" && !strings.Contains(m[4], `\`) {
			return m[4], nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	return "", ErrNoTree
}

// Of returns the cgroup of a process; 0 stands for this one. The error matches ErrOutside if the process is in
// none that this process can see.
func Of(pid int) (string, error) {
	who := "self"
	if pid != 0 {
		who = strconv.Itoa(pid)
	}
	b, err := os.ReadFile("/proc/" + who + "/cgroup")
	if err != nil {
		return "", err
	}
	return parseOf(b)
}

// parseOf finds the cgroup v2 in a file of cgroups(7).
func parseOf(b []byte) (string, error) {
	for line := range bytes.Lines(b) {
		p, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("0::"))
		if !ok {
			continue
		}
		p = bytes.TrimSuffix(p, []byte(" (deleted)"))
		if s := string(p); Valid(s) {
			return s, nil
		}
		return "", fmt.Errorf("%w: %q", ErrOutside, p)
	}
	return "", errors.New("the process has no cgroup of version 2")
}

// Mount is where the tree is mounted on most machines: systemd and container runtimes do so.
const Mount = "/sys/fs/cgroup"

// Valid reports whether a path is one of a cgroup, and not of its folder below [Mount].
func Valid(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.HasPrefix(p, "/..") && !strings.ContainsRune(p, 0) &&
		!strings.HasPrefix(p+"/", Mount+"/")
}

// RunPrefix is how the names of the cgroups begin that are made for programs under 'smcr run'.
const RunPrefix = "smcr-run-"

// IsRun reports whether a path is that of a cgroup of 'smcr run'.
func IsRun(p string) bool { return strings.HasPrefix(path.Base(p), RunPrefix) }

// ID returns the number of the cgroup whose folder is dir.
func ID(dir string) (uint64, error) {
	st, err := os.Lstat(dir)
	if err != nil {
		return 0, err
	}
	if !st.IsDir() {
		return 0, &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

// Enter has a process be in the cgroup whose folder is dir; 0 stands for this one.
func Enter(dir string, pid int) error {
	// O_TRUNC and O_CREATE would be refused to users who may write.
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(pid))
	return errors.Join(err, f.Close())
}

// Events is the name of the file that changes when a cgroup becomes populated, or is so no more.
const Events = "cgroup.events"

// Populated reports whether there are processes in the cgroup whose folder is dir, or below it.
func Populated(dir string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, Events))
	if err != nil {
		return false, err
	}
	return bytes.Contains(append([]byte("\n"), b...), []byte("\npopulated 1\n")), nil
}

// Processes returns the processes in the cgroup whose folder is dir, and below it, as far as this process sees them.
func Processes(dir string) (pids []int) {
	_ = filepath.WalkDir(dir+"/.", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // gone meanwhile
		}
		b, _ := os.ReadFile(filepath.Join(name, "cgroup.procs"))
		for _, word := range bytes.Fields(b) {
			if n, err := strconv.Atoi(string(word)); err == nil && n > 0 { // 0: of another PID namespace
				pids = append(pids, n)
			}
		}
		return nil
	})
	return pids
}
