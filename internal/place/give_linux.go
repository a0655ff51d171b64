// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Give gives the place of this network namespace to the user uid and the group gid, so that
// a stack that runs as this user can take it, and every user of the machine trusts it. Only
// root can do this. The user gets a directory with nothing but a lock that is free, unless it
// had the place before. The error matches [ErrTaken] if a stack has the place.
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

// givenName is the name of the lock before it is whole: Sweep leaves a directory alone that is not empty.
const givenName = fresh + lockName

func (v *view) give(uid, gid uint32) error {
	for end := time.Now().Add(takeWait); ; time.Sleep(takeTick) {
		if err := v.tryGive(uid, gid); !errors.Is(err, errAgain) || time.Now().After(end) {
			return err
		}
	}
}

// tryGive returns errAgain if another stack has swept the directory meanwhile.
func (v *view) tryGive(uid, gid uint32) error {
	dir := v.dir(v.root)
	for _, path := range []string{v.root, filepath.Dir(dir), dir} {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		st, err := os.Lstat(path)
		if err != nil {
			return gone(err)
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
				return gone(err)
			}
		}
		if path != dir && !onlyRoot(st) {
			return &UntrustedError{Path: path, Owner: owner(st), Why: fmt.Sprintf("belongs to user %d and has the mode %04o: "+
				"only if it belongs to root, and nobody else can write to it, can root give a directory in it to a user", owner(st), st.Mode().Perm())}
		}
	}
	if err := giveDir(dir, uid, gid); err != nil || uid == 0 {
		return gone(err)
	}
	return gone(v.keep(dir, uid, gid))
}

// keep makes the lock of a stack that is still to come, unless there is one: it says whose network namespace the directory is for, and so
// other stacks do not sweep the directory, which only root can make. The owner of the directory may do anything there meanwhile.
func (v *view) keep(dir string, uid, gid uint32) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	at := int(d.Fd())
	if unix.Faccessat(at, lockName, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	_ = unix.Unlinkat(at, givenName, 0) // of one that was killed
	fd, err := unix.Openat(at, givenName, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Join(dir, givenName), Err: err}
	}
	f := os.NewFile(uintptr(fd), givenName)
	defer f.Close()
	if err := errors.Join(writeHolders(f, strconv.AppendUint(nil, v.ino, 10), nil), f.Chmod(0o600), f.Chown(int(uid), int(gid))); err != nil {
		return err
	}
	err = unix.Renameat2(at, givenName, at, lockName, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		err = unix.Unlinkat(at, givenName, 0)
	}
	if err != nil {
		return &fs.PathError{Op: "rename", Path: filepath.Join(dir, givenName), Err: err}
	}
	return nil
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
