// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"smcr/internal/smctools/tool"

	"golang.org/x/sys/unix"
)

// CacheEnv is the environment variable that names the cache file of smcr stats.
const CacheEnv = "SMCR_STATS_CACHE"

// cachePath returns the file with the counters at the last reset. smcr and smcd share
// it. The kernel's stack and the user-space stack have separate counters, and so
// separate files.
func (t *commandLine) cachePath() string { return cachePathOf(t.Env, t.Backend) }

// cachePathOf returns the same for the stack with this name.
func cachePathOf(e *tool.Env, stack string) string {
	if path := e.Getenv(CacheEnv); path != "" {
		return path
	}
	path := fmt.Sprintf("/tmp/.smcstats.u%d", e.UID)
	if stack == "user" {
		path += ".user"
	}
	return path
}

// A cacheFile is the open and locked cache file. It has a line for each number,
// then one for each of the fallback reasons of the server and of the client, then
// the totals of both.
type cacheFile struct{ f *os.File }

// openCache opens the file, creates it if necessary, and waits for its lock. It does
// not follow symbolic links, because every user can write to the directory.
func openCache(path string) (*cacheFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open cache file: %s", reasonOf(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("cache file lock: %s", reasonOf(err))
	}
	return &cacheFile{f}, nil
}

// reasonOf returns the text of the C library for an errno.
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

// read returns the content of the file, or nil if it is empty.
func (c *cacheFile) read() (*counters, error) {
	var out counters
	list := out.numbers()
	lines := 0
	sc := bufio.NewScanner(c.f)
	for ; sc.Scan(); lines++ {
		line := sc.Text()
		i, n := 0, uint64(0)
		switch reasons := lines - len(list); {
		case reasons < 0:
			if _, err := fmt.Sscan(line, &i, &n); err != nil {
				return nil, errors.New("parsing cache file(stats): Success")
			}
			if i != lines {
				return nil, errors.New("unexpected value in cache file: Success")
			}
			*list[i] = n
		case reasons < 2*maxReasons:
			var r reason
			if _, err := fmt.Sscan(line, &i, &r.code, &r.count); err != nil {
				return nil, errors.New("parsing cache file (fback stats): Success")
			}
			if i < 0 || i > 2*maxReasons {
				return nil, errors.New("unexpected value in cache file (fback stats): Success")
			}
			if reasons < maxReasons {
				out.server[reasons] = r
			} else {
				out.client[reasons-maxReasons] = r
			}
		case reasons < 2*maxReasons+2:
			if _, err := fmt.Sscan(line, &n); err != nil {
				return nil, errors.New("parsing cache file(fback counters): Success")
			}
			*[]*uint64{&out.serverSum, &out.clientSum}[reasons-2*maxReasons] = n
		default:
			return nil, errors.New("cache file corrupt: Success")
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("parsing cache file(stats): %s", reasonOf(err))
	}
	if lines == 0 {
		return nil, nil
	}
	return &out, nil
}

// write replaces the content of the file.
func (c *cacheFile) write(v *counters) error {
	if err := c.f.Truncate(0); err != nil {
		return fmt.Errorf("ftruncate: %s", reasonOf(err))
	}
	var b strings.Builder
	for i, n := range v.numbers() {
		fmt.Fprintf(&b, "%-12d%-16d\n", i, *n)
	}
	for i, r := range append(v.server[:], v.client[:]...) {
		fmt.Fprintf(&b, "%-12d%-16d%-16d\n", i, r.code, r.count)
	}
	fmt.Fprintf(&b, "%16d\n%16d\n", v.serverSum, v.clientSum)
	if _, err := c.f.WriteAt([]byte(b.String()), 0); err != nil {
		return fmt.Errorf("write cache file: %s", reasonOf(err))
	}
	return nil
}
