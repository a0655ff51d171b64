// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sweep removes the directories of network namespaces that do not exist any more, unless a
// stack has the lock. alive returns the inode numbers of the existing network namespaces.
// Directories to which this process may not write stay.
func Sweep(alive func() (map[uint64]bool, error)) error {
	v, err := current()
	if err != nil {
		return err
	}
	return v.sweep(alive)
}

func (v *view) sweep(alive func() (map[uint64]bool, error)) error {
	var dirs []string
	for _, base := range v.bases() {
		top := filepath.Dir(v.dir(base))
		// Links are not followed, and directories of other users are not changed.
		st, err := os.Lstat(top)
		if err != nil || isType(top, st, fs.ModeDir) != nil || trusted(top, st, v.uid, 0) != nil || unix.Access(top, unix.W_OK) != nil {
			continue
		}
		entries, err := os.ReadDir(top)
		if err != nil {
			return err
		}
		for _, e := range entries {
			cookie, err := strconv.ParseUint(e.Name(), 10, 64)
			if err == nil && cookie != v.cookie && e.IsDir() {
				dirs = append(dirs, filepath.Join(top, e.Name()))
			}
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	// alive must be called after the directories were listed: a namespace exists before
	// its directory.
	there, err := alive()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		err = errors.Join(err, v.sweepDir(dir, there))
	}
	return err
}

func (v *view) sweepDir(dir string, alive map[uint64]bool) error {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_ = os.Remove(dir) // unless there is something else in it
		return nil
	case err != nil:
		return err
	}
	defer f.Close()
	done, err := turn(f, name)
	if err == nil {
		defer done()
		err = lockFile(f, name)
	}
	if errors.Is(err, ErrTaken) || errors.Is(err, errAgain) {
		return nil
	} else if err != nil {
		return err
	}
	// A file that was written in part names no process, but has its first line.
	b, _, err := readHolders(f)
	if b == nil && err != nil {
		return err
	}
	// A stack that was killed early has not written the inode number. If the number is
	// that of this namespace, it belonged to an earlier namespace, because the cookie is
	// another one.
	ino, err := strconv.ParseUint(string(b), 10, 64)
	if err == nil && alive[ino] && ino != v.ino {
		return nil
	}
	// The lock file is removed last. A stack that has opened it notices that the file
	// has no name any more.
	serr := os.Remove(filepath.Join(dir, State))
	if errors.Is(serr, fs.ErrNotExist) {
		serr = nil
	}
	if err := errors.Join(removeSockets(dir), serr, os.Remove(name)); err != nil {
		return err
	}
	_ = os.Remove(dir) // unless there is something else in it
	return nil
}
