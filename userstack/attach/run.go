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
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/place"
	"smcr/userstack/divert"
)

// AnyNamespace has a [Table] have the runs of all network namespaces: no cookie is 0. It has those of [EnterOwn] only if they
// ask.
const AnyNamespace = 0

// ofNamespace reports whether the name of a cgroup is one of a run in a network namespace.
func ofNamespace(name string, namespace uint64) bool {
	rest, ok := strings.CutPrefix(name, cgroup.RunPrefix)
	ns, _, both := strings.Cut(rest, "-")
	n, err := strconv.ParseUint(ns, 10, 64)
	return ok && both && err == nil && (n == namespace || namespace == AnyNamespace)
}

// newRun returns a name for the cgroup of a run: the network namespace, and a random part.
func newRun(namespace uint64) string {
	return fmt.Sprintf("%s%d-%s", cgroup.RunPrefix, namespace, strings.ToLower(rand.Text()[:10]))
}

// below is the cgroup below which the runs of processes are that are in the topmost one: without a service manager, many are.
// The folder of that one gives nobody a right to write, so only root with all rights can make a cgroup there, or remove it.
const below = "/smcr"

// makeBelow makes it, if that is needed and possible: a stack has the right to at its start only.
func makeBelow(top string) error {
	st, err := os.Stat(top)
	if err != nil || st.Mode().Perm()&0o200 != 0 {
		return nil // a part of the tree, as in a container
	}
	if err := os.Mkdir(filepath.Join(top, below), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// parentOf returns the cgroup below which that of a run is for a process in own.
func parentOf(top, own string) string {
	if own == "/" {
		if _, err := cgroup.ID(filepath.Join(top, below)); err == nil {
			return below
		}
	}
	return own
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
	ns, err := place.Cookie()
	if err != nil {
		return nil, err
	}
	if own == "/" {
		_ = makeBelow(top) // or it is below own, if anywhere
	}
	before := filepath.Join(top, own)
	parent := filepath.Join(top, parentOf(top, own))
	for _, dir := range slices.Compact([]string{parent, before}) {
		sweep(dir)
	}
	dir := filepath.Join(parent, newRun(ns))
	if err := makeFor(dir, func() error { return cgroup.Enter(dir, 0) }); err != nil {
		if errors.Is(err, unix.EROFS) { // in most containers
			err = errors.Join(err, os.ErrPermission)
		}
		return nil, err
	}
	return func() error { return errors.Join(cgroup.Enter(before, 0), os.Remove(dir)) }, nil
}

// makeFor makes a cgroup, and calls enter, which has a process be in it. Another process may sweep before it is.
func makeFor(dir string, enter func() error) error {
	for try := 0; ; try++ {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		err := enter()
		if err == nil {
			return nil
		}
		if rerr := os.Remove(dir); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return errors.Join(err, rerr)
		}
		if try > 2 || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
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

// Enter has a process be in a cgroup for a run: in a new one below its own, unless it is in one by
// [EnterOwn] already, or by a run that has started this one. always is that of the Entry. Errors:
// os.ErrPermission if the process is not one of the user, ErrNoRight if this process may not make a cgroup there,
// cgroup.ErrOutside if it does not see that of the process, syscall.EUSERS and syscall.ENOSPC for too many,
// or those of the cgroup tree.
func (t *Table) Enter(who *Process, always bool) (Entry, error) {
	done, err := who.hold()
	if err != nil {
		return Entry{}, err
	}
	defer done()
	own, err := cgroup.Of(who.PID)
	if err != nil {
		return Entry{}, err
	}
	if err := who.is(); err != nil {
		return Entry{}, err
	}
	e := Entry{Path: own, UID: who.UID, Run: true, Does: divert.Does{Connect: true, Accept: true, Always: always}}
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
		if t.cfg.Namespace == AnyNamespace {
			noteUser(t.dir(own), e.UID) // Find has it, too
		}
		return t.enter(e)
	}
	if err := t.mayAdd(&e); err != nil {
		return Entry{}, err
	}
	e.Path = path.Join(parentOf(t.cfg.Top, own), newRun(who.Namespace))
	dir := t.dir(e.Path)
	entering := false
	if err := makeFor(dir, func() error { entering = true; return who.move(t.cfg.Top, dir) }); err != nil {
		if !entering && (errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)) {
			err = fmt.Errorf("%w: %w", ErrNoRight, err)
		}
		return Entry{}, err
	}
	noteUser(dir, e.UID)
	e, err = t.enter(e)
	if err != nil { // the process goes back
		_ = cgroup.Enter(t.dir(own), who.PID)
		_ = os.Remove(dir)
	}
	return e, err
}

// RunOf returns the entry of the run that a process is in. The error matches os.ErrNotExist if it is in none, and os.ErrPermission if
// the process is not one of the user.
func (t *Table) RunOf(who *Process) (Entry, error) {
	done, err := who.hold()
	if err != nil {
		return Entry{}, err
	}
	defer done()
	own, err := cgroup.Of(who.PID)
	if err == nil {
		err = who.is()
	}
	if err != nil {
		return Entry{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[own]
	if e == nil || !e.Run || e.Cgroup == 0 {
		return Entry{}, fmt.Errorf("process %d is not under 'smcr run': %w", who.PID, os.ErrNotExist)
	}
	return e.Entry, nil
}

// ErrNoRight means that the stack may not make a cgroup for a program.
var ErrNoRight = errors.New("the stack has no right to make a cgroup for the program")

// enter adds the entry of a run. mu is held.
func (t *Table) enter(e Entry) (Entry, error) {
	if err := t.add(e); err != nil {
		return Entry{}, err
	}
	return t.entries[e.Path].Entry, nil
}

// Find adds the cgroups of runs that another stack of the network namespace has left, and removes those without programs, also of
// other namespaces: their stack may be gone with its namespace. Its cost is that of a look at each cgroup of the host.
func (t *Table) Find() error {
	return filepath.WalkDir(t.cfg.Top, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && dir == t.cfg.Top:
			return err
		case err != nil || !d.IsDir(): // gone meanwhile, or not for this process
			return nil
		case !ofNamespace(d.Name(), t.cfg.Namespace):
			if ofNamespace(d.Name(), AnyNamespace) {
				_ = unix.Rmdir(dir) // EBUSY: it has programs
			}
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return nil
		}
		p := strings.TrimPrefix(dir, path.Clean(t.cfg.Top))
		uid, noted := userOf(dir, st.Sys().(*syscall.Stat_t).Uid)
		if t.cfg.Namespace == AnyNamespace && !noted {
			_ = unix.Rmdir(dir)
			return nil // somebody has made it for himself
		}
		e := Entry{Path: p, UID: uid, Run: true, Does: divert.Does{Connect: true, Accept: true}}
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
