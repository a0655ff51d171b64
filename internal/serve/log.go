// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// logDir is where services that were started on demand log. The log of each
// bears the inode number of its network namespace. It is removed when the
// service ends in order and kept after a failure, until the next service of
// the namespace, or one that starts when the namespace is gone.
const logDir = "/run/smcr"

// openLog opens the log of the service of this network namespace, or returns
// nil where there is no place for it. Whoever has it open and locked is a
// service; one that starts beside it only adds to the log.
func openLog(dir string) *os.File {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil
	}
	removeStaleLogs(dir)
	name, err := logName(dir)
	if err != nil {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil
	}
	// The lock goes with the descriptor that the service inherits.
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = f.Truncate(0)
	}
	return f
}

// logName returns the path of the log of the calling thread's network
// namespace.
func logName(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return "", err
	}
	return filepath.Join(dir, fmt.Sprintf("serve-%d.log", st.Ino)), nil
}

// logNamespace returns the network namespace that a log's name tells of.
func logNamespace(name string) (ino uint64, ok bool) {
	digits, pre := strings.CutPrefix(name, "serve-")
	digits, post := strings.CutSuffix(digits, ".log")
	ino, err := strconv.ParseUint(digits, 10, 64)
	return ino, pre && post && err == nil
}

// removeLog removes the log of this network namespace if f is it.
func removeLog(dir string, f *os.File) error {
	name, err := logName(dir)
	if err != nil {
		return err
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
		return nil // logged elsewhere
	}
	if err != nil {
		return err
	}
	return os.Remove(name)
}

// removeStaleLogs removes the logs of network namespaces that are gone. A
// namespace out of sight can lose the log of a failure, but no service its log.
func removeStaleLogs(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	// In this order: a service and who starts it are in their namespace before
	// there is a log.
	alive, err := namespaces()
	if err != nil {
		return
	}
	for _, e := range entries {
		ino, ok := logNamespace(e.Name())
		if !ok || alive[ino] || !e.Type().IsRegular() {
			continue
		}
		removeUnlocked(filepath.Join(dir, e.Name()))
	}
}

// removeUnlocked removes a log that no service has open, wherever it runs.
func removeUnlocked(name string) {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(name)
	}
}

// namespaces returns the inode numbers of the network namespaces that a
// process is in or that are mounted somewhere (ip netns), as far as this
// process may see them.
func namespaces() (map[uint64]bool, error) {
	alive := make(map[uint64]bool)
	procs, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	for _, name := range procs {
		link, err := os.Readlink(name)
		if err != nil {
			continue // it has ended, or is none of ours to look at
		}
		if ino, ok := parseNamespace(link); ok {
			alive[ino] = true
		}
	}
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		// ID, parent's ID, device, root: for a namespace what its link says.
		if f := strings.Fields(lines.Text()); len(f) > 3 {
			if ino, ok := parseNamespace(f[3]); ok {
				alive[ino] = true
			}
		}
	}
	return alive, lines.Err()
}

// parseNamespace reads "net:[4026531840]".
func parseNamespace(s string) (ino uint64, ok bool) {
	digits, pre := strings.CutPrefix(s, "net:[")
	digits, post := strings.CutSuffix(digits, "]")
	ino, err := strconv.ParseUint(digits, 10, 64)
	return ino, pre && post && err == nil
}
