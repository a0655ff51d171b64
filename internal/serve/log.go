// SPDX-License-Identifier: Apache-2.0

package serve

import (
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

// logDir is the directory for logs of services that were started on demand. The name
// of a log has two numbers of the network namespace: its inode number, which a later
// namespace may have again, and its cookie, which is never reused. A log is removed
// when its service ends in order, and kept after a failure. When the next service of
// the namespace starts, it renames the log of a service that had served. That log stays
// until another service fails. The log of a service that never served is overwritten.
// If the network namespace does not exist any more, the next service of any namespace
// removes both logs. It also removes the oldest ones of other namespaces, so that no more than
// maxLogs stay. The size of each has a limit, too: see cappedLog.
const logDir = "/run/smcr"

// openLog opens the log of the service of this network namespace, or returns nil if
// that is not possible. A process that has the log open and locked is a service. A
// second service that starts at the same time only appends to the log.
func openLog(dir string) *os.File {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil
	}
	removeStaleLogs(dir)
	name, err := logName(dir)
	if err != nil {
		return nil
	}
	removeOldest(dir, maxLogs, func(other string) bool {
		_, ok := logNamespace(other)
		return ok && other != filepath.Base(name) && other != filepath.Base(diedName(name))
	})
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

// openLocked opens a log, and locks it if no service has locked it. The lock belongs
// to the descriptor, which the service inherits. f is nil if the log cannot be opened.
func openLocked(name string) (f *os.File, locked bool) {
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR|unix.O_NOFOLLOW, 0o640)
		if err != nil {
			return nil, false
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return f, false
		}
		mine, err := f.Stat()
		there, terr := os.Lstat(name)
		if err != nil || terr == nil && os.SameFile(mine, there) {
			return f, true
		}
		_ = f.Close() // somebody has removed it before it was locked
	}
}

// servingMessage is the message that a service logs when it begins to serve.
const servingMessage = "serving"

// served reports whether a service has served, by a message near the beginning of its
// log.
func served(f *os.File) bool {
	b := make([]byte, 64<<10)
	n, _ := f.ReadAt(b, 0)
	return bytes.Contains(b[:n], []byte("msg="+servingMessage+" "))
}

// diedSuffix is the end of the name of a log of a failed service.
const diedSuffix = ".died.log"

// diedName returns the new name for the log of a failed service.
func diedName(name string) string { return strings.TrimSuffix(name, ".log") + diedSuffix }

// Died is the log of a service that did not end in order.
type Died struct {
	Log  string    // path
	Last time.Time // time of its last line
}

// LastDied returns the log of the last service of this network namespace that was
// started on demand and failed, if the log still exists. A log that was not renamed
// yet is returned only to the user of that service and to root.
func LastDied() (Died, bool) { return lastDied(logDir) }

func lastDied(dir string) (Died, bool) {
	name, err := logName(dir)
	if err != nil {
		return Died{}, false
	}
	// The log of a failed service after which no other service has started.
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

// logNamespace returns the network namespace in the name of a log.
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

// removeLog removes the log of this network namespace if f is this log, or empties it.
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
		return nil // f is another log
	}
	if err != nil {
		return err
	}
	if err := os.Remove(name); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	// The service is not root's, and the directory is. Without a content, the file is not the log
	// of a service that served. The next service uses it.
	return f.Truncate(0)
}

// removeStaleLogs removes the logs of network namespaces that do not exist any more, but not
// the log of a running service. A process without the capability to see all namespaces
// removes nothing.
func removeStaleLogs(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	// This order matters: a service, and the process that starts it, are in their
	// namespace before the log exists.
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
		// An earlier namespace with the same inode number does not exist any more.
		before := ns.ino == own.ino && ns.cookie != own.cookie
		if !ok || alive[ns.ino] && !before || !e.Type().IsRegular() {
			continue
		}
		removeUnlocked(filepath.Join(dir, e.Name()))
	}
}

// removeUnlocked removes a log unless a service has locked it.
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
