// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxLogs is how many logs of services that have ended stay in the directory: it is in memory,
	// and there may be as many network namespaces as somebody makes.
	maxLogs = 32
	// maxBroken is the same of state files that could not be used.
	maxBroken = 8
)

// removeOldest removes the oldest ones of the files of a directory whose names are of a kind, so that no more than
// most stay. Those that a service has locked do not count, and stay.
func removeOldest(dir string, most int, kind func(name string) bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !kind(e.Name()) || !e.Type().IsRegular() })
	if len(entries) <= most {
		return // most often: no file is locked to see whether that is possible
	}
	type ended struct {
		path string
		last time.Time
	}
	var all []ended
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if st, err := e.Info(); err == nil && !isLocked(path) {
			all = append(all, ended{path, st.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b ended) int { return a.last.Compare(b.last) })
	for _, e := range all[:max(0, len(all)-most)] {
		removeUnlocked(e.path)
	}
}

// isLocked reports whether a service has locked a file, or it cannot be known.
func isLocked(name string) bool {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
