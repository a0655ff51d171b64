// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// downloadLimit is the time to find, download and unpack a kernel of about 100 MB.
	downloadLimit = 5 * time.Minute
)

// A Series is a series of kernels of Debian.
type Series struct {
	name, suite string
	version     *regexp.Regexp // of the releases in their plain flavour, not cloud, which has no RDMA, and not rt
}

var (
	// WithSMC is the series that guests have unless they say otherwise: 6.1 hangs in SMC-R over soft-RoCE, and
	// Debian's kernels after 6.12 have no SMC.
	WithSMC = Series{"6.12", "trixie", regexp.MustCompile(`^6\.12\.(\d+)\+[a-z0-9.]+-amd64$`)}
	// Oldest is the oldest one on which the stack in user space is tried.
	Oldest = Series{"6.1", "bookworm", regexp.MustCompile(`^6\.1\.0-(\d+)-amd64$`)}
)

// A Kernel is a kernel with its modules in the cache.
type Kernel struct {
	Version string // release, as in uname -r
	dir     string // has vmlinuz and lib/modules/Version
}

func (k Kernel) image() string   { return filepath.Join(k.dir, "vmlinuz") }
func (k Kernel) modules() string { return filepath.Join(k.dir, "lib/modules", k.Version) }

// Find returns the newest kernel of the series in the cache. If there is none, it downloads one.
// The error matches [ErrUnavailable].
func (s Series) Find(ctx context.Context) (Kernel, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return Kernel{}, unavailable("no cache directory: %w", err)
	}
	cache := filepath.Join(base, "smcr", "guest")
	if k, ok := s.cached(cache); ok {
		return k, nil
	}
	ctx, cancel := context.WithTimeout(ctx, downloadLimit)
	defer cancel()
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Kernel{}, unavailable("%w", err)
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return Kernel{}, unavailable("%w", err)
	}
	defer unlock()
	if k, ok := s.cached(cache); ok {
		return k, nil // another process was faster
	}
	// This process has the lock, so these are the remains of a process that was killed.
	stale, err := filepath.Glob(filepath.Join(cache, "tmp-*"))
	if err != nil {
		return Kernel{}, unavailable("%w", err)
	}
	for _, d := range stale {
		if err := os.RemoveAll(d); err != nil {
			return Kernel{}, unavailable("%w", err)
		}
	}
	work, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return Kernel{}, unavailable("%w", err)
	}
	k, err := s.download(ctx, work)
	if err == nil {
		final := filepath.Join(cache, k.Version)
		err = os.Rename(k.dir, final)
		k.dir = final
	}
	if err = errors.Join(err, os.RemoveAll(work)); err != nil {
		return Kernel{}, unavailable("%w", err)
	}
	return k, nil
}

// newest returns the newest name that is a release of the series.
func (s Series) newest(names []string) (string, bool) {
	patch := func(name string) int {
		m := s.version.FindStringSubmatch(name)
		if m == nil {
			return -1
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return -1
		}
		return n
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return patch(n) < 0 })
	if len(names) == 0 {
		return "", false
	}
	return slices.MaxFunc(names, func(a, b string) int {
		if pa, pb := patch(a), patch(b); pa != pb {
			return pa - pb
		}
		return strings.Compare(a, b)
	}), true
}

// cached returns the newest kernel of the cache. A directory gets its name when it is
// complete.
func (s Series) cached(cache string) (Kernel, bool) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return Kernel{}, false
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	v, ok := s.newest(names)
	return Kernel{Version: v, dir: filepath.Join(cache, v)}, ok
}

// lock takes the lock on a file. The returned function releases it, and so does the end
// of the process.
func lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, ctx.Err())
		}
	}
}
