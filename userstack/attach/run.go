// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/userstack/divert"
)

// ofNamespace reports whether the name of a cgroup is one of a run in a network namespace.
func ofNamespace(name string, namespace uint64) bool {
	rest, ok := strings.CutPrefix(name, cgroup.RunPrefix)
	ns, _, both := strings.Cut(rest, "-")
	n, err := strconv.ParseUint(ns, 10, 64)
	return ok && both && err == nil && n == namespace
}

// newRun returns a name for the cgroup of a run: the network namespace, and a random part.
func newRun(namespace uint64) string {
	return fmt.Sprintf("%s%d-%s", cgroup.RunPrefix, namespace, strings.ToLower(rand.Text()[:10]))
}

// Namespace returns the inode number of the network namespace of the calling thread: see [Config.Namespace].
func Namespace() (uint64, error) {
	st, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

// below is the cgroup below which the runs of processes are that are in the topmost one: without a service manager, many are.
// The folder of that one gives nobody a right to write, so only root with all rights can make a cgroup there.
const below = "/smcr"

// makeBelow makes it, if that is needed and possible: a stack has the right to at its start only.
func (t *Table) makeBelow() {
	st, err := os.Stat(t.cfg.Top)
	if err != nil || st.Mode().Perm()&0o200 != 0 {
		return // a part of the tree, as in a container
	}
	if err := os.Mkdir(t.dir(below), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		t.cfg.Log.Debug("programs of the topmost cgroup stay TCP", "err", err)
	}
}

func (t *Table) hasBelow() bool {
	_, err := cgroup.ID(t.dir(below))
	return err == nil
}

// EnterOwn has this process be in a new cgroup for a run, below its own, without the help of the stack. It is
// permitted where a cgroup was delegated to the user, as that of a systemd user manager is, and to root. The error
// matches os.ErrPermission elsewhere: then [Table.Enter] does it. undo leaves the cgroup again.
func EnterOwn() (undo func() error, err error) {
	top, err := cgroup.Top()
	if err != nil {
		return nil, err
	}
	own, err := cgroup.Of(0)
	if err != nil {
		return nil, err
	}
	if cgroup.IsRun(own) {
		return func() error { return nil }, nil
	}
	ns, err := Namespace()
	if err != nil {
		return nil, err
	}
	before := filepath.Join(top, own)
	sweep(before)
	dir := filepath.Join(before, newRun(ns))
	for try := 0; ; try++ {
		if err := os.Mkdir(dir, 0o755); err != nil {
			if errors.Is(err, unix.EROFS) { // in most containers
				err = errors.Join(err, os.ErrPermission)
			}
			return nil, err
		}
		err := cgroup.Enter(dir, 0)
		if err == nil {
			break
		}
		_ = os.Remove(dir)
		if try > 2 || !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		// Another process has swept.
	}
	return func() error { return errors.Join(cgroup.Enter(before, 0), os.Remove(dir)) }, nil
}

// sweep removes the cgroups of runs that are over: where EnterOwn makes them, the stack often has no right to.
func sweep(dir string) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range all {
		if e.IsDir() && cgroup.IsRun(e.Name()) {
			_ = unix.Rmdir(filepath.Join(dir, e.Name())) // EBUSY: it has processes
		}
	}
}

// Enter has a process of a user be in a cgroup for a run: in a new one below its own, unless it is in one by
// [EnterOwn] already, or by a run that has started this one. always is that of the Entry. Errors:
// os.ErrPermission if the process is not one of the user, cgroup.ErrOutside if the stack does not see its cgroup, syscall.EUSERS and syscall.ENOSPC for too many,
// or those of the cgroup tree.
func (t *Table) Enter(pid int, uid uint32, always bool) (Entry, error) {
	if pid <= 0 {
		return Entry{}, cgroup.ErrOutside // in another PID namespace
	}
	if err := mayMove(pid, uid); err != nil {
		return Entry{}, err
	}
	own, err := cgroup.Of(pid)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Path: own, UID: uid, Run: true, Does: divert.Does{Connect: true, Accept: true, Always: always}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handed {
		return Entry{}, errHandedOver
	}
	if cgroup.IsRun(own) {
		if have := t.entries[own]; have != nil {
			return have.Entry, nil
		}
		if !ofNamespace(path.Base(own), t.cfg.Namespace) {
			return Entry{}, fmt.Errorf("the program is under 'smcr run' of another network namespace: %w", os.ErrInvalid)
		}
		return t.enter(e)
	}
	parent := own
	if own == "/" && t.hasBelow() {
		parent = below
	}
	e.Path = path.Join(parent, newRun(t.cfg.Namespace))
	dir := t.dir(e.Path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return Entry{}, err
	}
	if err := cgroup.Enter(dir, pid); err != nil {
		return Entry{}, errors.Join(err, os.Remove(dir))
	}
	e, err = t.enter(e)
	if err != nil { // the process goes back
		_ = cgroup.Enter(t.dir(own), pid)
		_ = os.Remove(dir)
	}
	return e, err
}

// enter adds the entry of a run. mu is held.
func (t *Table) enter(e Entry) (Entry, error) {
	if err := t.add(e); err != nil {
		return Entry{}, err
	}
	return t.entries[e.Path].Entry, nil
}

// mayMove returns an error if a process is not one of a user. It waits for the answer to its request, so its number
// is not that of another process meanwhile.
func mayMove(pid int, uid uint32) error {
	uids, err := status(pid, "Uid:") // real, effective, saved, of the file system
	switch {
	case err != nil:
		return err
	case len(uids) < 2 || uids[1] != uid:
		return fmt.Errorf("process %d is not one of user %d: %w", pid, uid, os.ErrPermission)
	}
	return nil
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

// Find adds the cgroups of runs that another stack of the network namespace has left, and removes those without
// programs. Its cost is that of a look at each cgroup of the host.
func (t *Table) Find() error {
	return filepath.WalkDir(t.cfg.Top, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && dir == t.cfg.Top:
			return err
		case err != nil || !d.IsDir(): // gone meanwhile, or not for this process
			return nil
		case !ofNamespace(d.Name(), t.cfg.Namespace):
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return nil
		}
		p := strings.TrimPrefix(dir, path.Clean(t.cfg.Top))
		e := Entry{Path: p, UID: st.Sys().(*syscall.Stat_t).Uid, Run: true, Does: divert.Does{Connect: true, Accept: true}}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.entries[p] != nil {
			return nil
		}
		if err := t.add(e); err != nil && !errors.Is(err, errOver) {
			t.cfg.Log.Warn("the programs of an earlier 'smcr run' stay TCP", "cgroup", p, "err", err)
		}
		return nil
	})
}
