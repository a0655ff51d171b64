// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// logDir is where services that were started on demand log. The log of each
// bears the inode number of its network namespace, which a later namespace may
// get again, and its cookie, which none does. It is removed when the service
// ends in order and kept after a failure. When the next service of the namespace
// starts, the log of one that had served moves aside, and stays until another
// one dies; that of one that never came up is overwritten. Both go when a
// service starts anywhere and the namespace is gone.
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
	f, mine := openLocked(name)
	if !mine {
		return f
	}
	if served(f) && os.Rename(name, diedName(name)) == nil {
		_ = f.Close()
		f, mine = openLocked(name)
	}
	if mine {
		_ = f.Truncate(0)
	}
	return f
}

// openLocked opens a log, and locks it if no service has. The lock goes with the
// descriptor that the service inherits. f is nil if it cannot be opened.
func openLocked(name string) (f *os.File, locked bool) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, false
	}
	return f, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// servingMessage is what a service logs when it serves.
const servingMessage = "serving"

// served reports whether the log is of a service that came up, which says so
// early.
func served(f *os.File) bool {
	b := make([]byte, 64<<10)
	n, _ := f.ReadAt(b, 0)
	return bytes.Contains(b[:n], []byte("msg="+servingMessage+" "))
}

// diedSuffix ends the name of the log of a service that died.
const diedSuffix = ".died.log"

// diedName returns where the log of a service goes that died.
func diedName(name string) string { return strings.TrimSuffix(name, ".log") + diedSuffix }

// Died is the log that a service left which did not end in order.
type Died struct {
	Log  string    // path
	Last time.Time // of its last line
}

// LastDied returns the log of the last service of this network namespace that
// was started on demand and died, if it is still there. One that died since may
// be told to its user and to root only.
func LastDied() (Died, bool) { return lastDied(logDir) }

func lastDied(dir string) (Died, bool) {
	name, err := logName(dir)
	if err != nil {
		return Died{}, false
	}
	// The log of a service that died and has no successor yet.
	if f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		defer f.Close()
		st, err := f.Stat()
		if err == nil && unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil && served(f) {
			return Died{name, st.ModTime()}, true
		}
	}
	name = diedName(name)
	st, err := os.Lstat(name)
	if err != nil || !st.Mode().IsRegular() {
		return Died{}, false
	}
	return Died{name, st.ModTime()}, true
}

// logName returns the path of the log of the calling thread's network
// namespace.
func logName(dir string) (string, error) {
	ns, err := ownNamespace()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, fmt.Sprintf("serve-%d-%d.log", ns.ino, ns.cookie)), nil
}

// logNamespace returns the network namespace that a log's name tells of.
func logNamespace(name string) (namespace, bool) {
	digits, pre := strings.CutPrefix(name, "serve-")
	digits, post := strings.CutSuffix(digits, diedSuffix)
	if !post {
		digits, post = strings.CutSuffix(digits, ".log")
	}
	ino, cookie, both := strings.Cut(digits, "-")
	var ns namespace
	var err, err2 error
	ns.ino, err = strconv.ParseUint(ino, 10, 64)
	ns.cookie, err2 = strconv.ParseUint(cookie, 10, 64)
	return ns, pre && post && both && err == nil && err2 == nil
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
	own, err := ownNamespace()
	if err != nil {
		return
	}
	for _, e := range entries {
		ns, ok := logNamespace(e.Name())
		// One that had this namespace's number before is gone, too.
		before := ns.ino == own.ino && ns.cookie != own.cookie
		if !ok || alive[ns.ino] && !before || !e.Type().IsRegular() {
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
	for _, name := range append(procs, "/proc/thread-self/ns/net") {
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
