// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/internal/smctools/tool"
)

// CacheEnv is the environment variable that names the cache file of smcr stats.
const CacheEnv = "SMCR_STATS_CACHE"

// errForeign means that the cache file is not one that this user has made: it belongs to
// another user, is not a regular file, or has a second name. Other users can put such files
// into /tmp. No reset of this user is in it.
var errForeign = errors.New("not a cache file of this user")

// errLocked means that another process had the lock of the cache file for all of lockWait.
var errLocked = errors.New("locked by another process")

const (
	// lockWait is how long a command waits for the lock. Programs of smc-tools have it
	// while they ask the kernel, which takes milliseconds.
	lockWait = time.Second
	lockTick = 10 * time.Millisecond
)

// cachePath returns the file with the counters at the last reset. smcr and smcd share it.
func (t *commandLine) cachePath() string { return cachePathOf(t.Env, t.Backend) }

// cachePathOf returns the cache file for the stack with this name. That of the kernel is the
// file of smc-tools, which the original programs use too. That of the user-space stack has
// separate counters. It is in the runtime directory of the user, to which no other user can
// write, or in /tmp if the user has none.
func cachePathOf(e *tool.Env, stack string) string {
	if path := e.Getenv(CacheEnv); path != "" {
		return path
	}
	path := fmt.Sprintf("/tmp/.smcstats.u%d", e.UID)
	if stack == "kernel" {
		return path
	}
	if dir, err := place.Runtime(); err == nil {
		return filepath.Join(dir, fmt.Sprintf("stats.u%d", e.UID))
	}
	return path + ".user"
}

// A cacheFile is the open and locked cache file. It has a line for each number,
// then one for each of the fallback reasons of the server and of the client, then
// the totals of both. For a stack in user space, a last line has its own counters.
type cacheFile struct{ f *os.File }

// A cacheError is an error of the cache file, with the text of smc-tools.
type cacheError struct {
	step string // what failed
	err  error
}

func (e *cacheError) Error() string { return e.step + ": " + reasonOf(e.err) }

func (e *cacheError) Unwrap() error { return e.err }

// openCache opens and locks the cache file of the user uid. flags are unix.O_RDWR, which
// creates the file if it does not exist, or unix.O_RDONLY, with which the error then matches
// [fs.ErrNotExist]. The error matches errForeign if another user can have made the file, and
// errLocked if the lock is not free within lockWait. Nothing that another user does delays
// openCache, except for that time.
func openCache(path string, uid, flags int) (*cacheFile, error) {
	for end := time.Now().Add(lockWait); ; {
		c, err := openUnlocked(path, uid, flags)
		if err == nil {
			var named bool
			if named, err = c.lock(path, end); named {
				return c, nil
			}
			c.Close()
			if err != nil {
				return nil, &cacheError{"cache file lock", err}
			}
		} else if !errors.Is(err, fs.ErrExist) {
			return nil, &cacheError{"open cache file", err}
		}
		// Another command of this user has created or removed the file meanwhile.
		if time.Now().After(end) {
			return nil, &cacheError{"open cache file", errLocked}
		}
	}
}

// openUnlocked opens the file. The error matches [fs.ErrExist] if another process creates it
// at the same time.
func openUnlocked(path string, uid, flags int) (*cacheFile, error) {
	// Every user can write to the directory: links are not followed, the open of a FIFO
	// does not wait, and only a new file is created.
	flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) && flags&unix.O_ACCMODE == unix.O_RDWR {
		f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		if st, lerr := os.Lstat(path); lerr == nil && fileOwner(st) != uid {
			err = foreign(path, st, uid)
		}
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = foreign(path, st, uid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &cacheFile{f}, nil
}

// foreign returns an error that matches errForeign if another user than uid can have made the
// file with this path.
func foreign(path string, st fs.FileInfo, uid int) error {
	why := ""
	switch {
	case fileOwner(st) != uid:
		why = fmt.Sprintf("belongs to user %d", fileOwner(st))
	case !st.Mode().IsRegular():
		why = "is not a regular file"
	case st.Sys().(*syscall.Stat_t).Nlink > 1:
		// Another user may have given a file of this user a second name.
		why = "has more than one name"
	default:
		return nil
	}
	return fmt.Errorf("%s %s: %w", path, why, errForeign)
}

// fileOwner returns the user that a file belongs to.
func fileOwner(st fs.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }

// lock locks the file until Close. It waits until end, and then returns errLocked. named
// reports whether the file still has this path.
func (c *cacheFile) lock(path string, end time.Time) (named bool, err error) {
	for {
		err := unix.Flock(int(c.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return false, err
		}
		if time.Now().After(end) {
			return false, errLocked
		}
		time.Sleep(lockTick)
	}
	mine, err := c.f.Stat()
	if err != nil {
		return false, err
	}
	there, serr := os.Lstat(path)
	return serr == nil && os.SameFile(mine, there), nil
}

// reasonOf returns the text of the C library for an errno, and that of the error otherwise.
func reasonOf(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	text := errno.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

// Close closes the file and releases the lock. It may be called again.
func (c *cacheFile) Close() { c.f.Close() }

// Remove removes the file.
func (c *cacheFile) Remove() { os.Remove(c.f.Name()) }
