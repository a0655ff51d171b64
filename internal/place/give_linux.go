// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Give gives the place of this network namespace to the user uid and the group gid, so that
// a stack that runs as this user can take it, and every user of the machine trusts it. Only
// root can do this. The user gets an empty directory, unless it had the place before. The
// error matches [ErrTaken] if a stack has the place.
func Give(uid, gid uint32) error {
	v, err := current()
	if err != nil {
		return err
	}
	if v.uid != 0 {
		return fmt.Errorf("only root can give the place of a stack to a user: %w", fs.ErrPermission)
	}
	return v.give(uid, gid)
}

func (v *view) give(uid, gid uint32) error {
	dir := v.dir(v.root)
	for _, path := range []string{v.root, filepath.Dir(dir), dir} {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		st, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if path != v.root { // which may be a link
			if err := isType(path, st, fs.ModeDir); err != nil {
				return err
			}
		} else if st, err = os.Stat(path); err != nil {
			return err
		}
		if path == filepath.Dir(dir) {
			if st, err = tighten(path, st, v.uid); err != nil {
				return err
			}
		}
		if path != dir && !onlyRoot(st) {
			return &UntrustedError{Path: path, Owner: owner(st), Why: fmt.Sprintf("belongs to user %d and has the mode %04o: "+
				"only if it belongs to root, and nobody else can write to it, can root give a directory in it to a user", owner(st), st.Mode().Perm())}
		}
	}
	return giveDir(dir, uid, gid)
}

// giveDir changes the owner of a directory and empties it. What the earlier owner has made
// there is removed and never read or given away: it may be a link to another file.
func giveDir(dir string, uid, gid uint32) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	st, err := d.Stat()
	if err != nil {
		return err
	}
	if owner(st) == uid {
		return nil
	}
	if err := isFree(d); err != nil {
		return err
	}
	// The owner changes first: from then on, the earlier one cannot make files here.
	if err := errors.Join(d.Chown(int(uid), int(gid)), d.Chmod(0o755)); err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		rerr := unix.Unlinkat(int(d.Fd()), name, 0)
		if errors.Is(rerr, unix.EISDIR) {
			rerr = unix.Unlinkat(int(d.Fd()), name, unix.AT_REMOVEDIR)
		}
		if rerr != nil {
			err = errors.Join(err, fmt.Errorf("remove %s: %w", filepath.Join(dir, name), rerr))
		}
	}
	return err
}

// isFree returns ErrTaken if a stack has the lock in a directory.
func isFree(d *os.File) error {
	fd, err := unix.Openat(int(d.Fd()), lockName, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // there is no lock, or something else that is removed
	}
	lock := os.NewFile(uintptr(fd), lockName)
	defer lock.Close()
	if st, err := lock.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if errors.Is(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		if _, dead := holdersDead(lock); !dead {
			return ErrTaken
		}
	}
	return nil
}
