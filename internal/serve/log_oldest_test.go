// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOldLogs: of the logs of services that have ended, the newest ones stay, whether or not their
// network namespaces exist and whoever may see them. Those of services that run stay, and other files.
func TestOldLogs(t *testing.T) {
	dir := t.TempDir()
	own, err := logName(dir)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Hour)
	write := func(name string, age int) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if at := begin.Add(-time.Duration(age) * time.Second); os.Chtimes(path, at, at) != nil {
			t.Fatal("cannot set the time of a file")
		}
	}
	const many = 3 * maxLogs
	name := func(i int) string { return fmt.Sprintf("serve-%d-%d%s", 1000+i, i, []string{".log", diedSuffix}[i%2]) }
	for i := range many {
		write(name(i), i)
	}
	write("notes.txt", 10*many)
	write(filepath.Base(own), 10*many)
	write(filepath.Base(diedName(own)), 10*many)
	running := name(many - 1) // the oldest
	f, err := os.Open(filepath.Join(dir, running))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	removeOldest(dir, maxLogs, func(other string) bool {
		_, ok := logNamespace(other)
		return ok && other != filepath.Base(own) && other != filepath.Base(diedName(own))
	})
	for i := range many {
		if _, err := os.Stat(filepath.Join(dir, name(i))); (err == nil) != (i < maxLogs || i == many-1) {
			t.Errorf("log %d: %v", i, err)
		}
	}
	if n := len(names(t, dir)); n != maxLogs+4 {
		t.Errorf("%d files, want %d", n, maxLogs+4)
	}
	// A service that starts does so.
	for i := range many {
		write(name(i), i)
	}
	log := openLog(dir)
	if log == nil {
		t.Fatal("no log")
	}
	defer log.Close()
	if n := len(names(t, dir)); n > maxLogs+4 {
		t.Errorf("%d files after a start", n)
	}
	if _, err := os.Stat(own); err != nil {
		t.Errorf("the log of the service: %v", err)
	}
}

// TestPutAside: a state file that could not be used stays, and those of other network namespaces in a bounded number.
func TestPutAside(t *testing.T) {
	dir := t.TempDir()
	begin := time.Now().Add(-time.Hour)
	for i := range 10 * maxBroken {
		path := filepath.Join(dir, fmt.Sprintf("state-%d.yaml", i))
		f := &stateFile{path: path}
		if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
			t.Fatal(err)
		}
		if at := begin.Add(time.Duration(i) * time.Second); os.Chtimes(path, at, at) != nil {
			t.Fatal("cannot set the time of a file")
		}
		aside, err := f.putAside()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(aside); err != nil {
			t.Error(err)
		}
	}
	if all := names(t, dir); len(all) != maxBroken+1 || !slices.Contains(all, fmt.Sprintf("state-%d.yaml.broken", 10*maxBroken-1)) {
		t.Errorf("left: %q", all)
	}
}

// TestRemovedBeforeLocked: a service whose log is removed before it has locked it makes another.
func TestRemovedBeforeLocked(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	stop, removed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(removed)
		for {
			select {
			case <-stop:
				return
			default:
				removeUnlocked(name)
			}
		}
	}()
	for range 500 {
		f, mine := openLocked(name)
		if f == nil {
			t.Fatal("no log")
		}
		if mine {
			st, err := f.Stat()
			there, terr := os.Lstat(name)
			if err != nil || terr != nil || !os.SameFile(st, there) {
				t.Fatalf("the log has no name: %v, %v", err, terr)
			}
		}
		_ = f.Close()
	}
	close(stop)
	<-removed
}
