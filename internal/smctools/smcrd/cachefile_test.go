// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/tool"
	_ "smcr/internal/testing/firstthread"
	"smcr/internal/testing/testkind"
	"smcr/nl/nltest"
)

// another is a user without privileges.
const another = 65534

// asAnother runs f as the user another: the kernel checks the rights of the thread.
func asAnother(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked, so the thread ends here
		for _, nr := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, e := unix.RawSyscall(nr, another, another, another); e != 0 {
				done <- fmt.Errorf("become user %d: %w", another, e)
				return
			}
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// publicDir returns a directory like /tmp: all users may write there, and nobody may remove
// files of others.
func publicDir(t *testing.T) string {
	t.Helper()
	// Above t.TempDir there are directories that nobody else may enter.
	dir, err := os.MkdirTemp("", "smcr-stats-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inTime runs a command line and fails if it takes long.
func (b *bench) inTime(line string) (out, errOut string, status int) {
	b.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, errOut, status = b.run(line)
	}()
	select {
	case <-done:
	case <-time.After(10 * lockWait):
		b.t.Fatalf("%s: does not end", line)
	}
	return out, errOut, status
}

// TestSquatter has another user put something at the path of the cache file. Commands that
// show counters work without the file, because no reset of this user is in it. A reset fails
// at once. The file does not change.
func TestSquatter(t *testing.T) {
	testkind.System(t)
	for name, make := range map[string]func(path string) error{
		"file": func(path string) error { return os.WriteFile(path, []byte("1"), 0o666) },
		"locked": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = f.Close() })
			return errors.Join(f.Chmod(0o666), unix.Flock(int(f.Fd()), unix.LOCK_EX))
		},
		"fifo":      func(path string) error { return errors.Join(unix.Mkfifo(path, 0o666), os.Chmod(path, 0o666)) },
		"socket":    func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) },
		"directory": func(path string) error { return os.Mkdir(path, 0o777) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"dangling":  func(path string) error { return os.Symlink(path+".target", path) },
	} {
		t.Run(name, func(t *testing.T) {
			s := nltest.State{}
			s.Stats.SMCR.RXBytes = 17
			b := newBench(t, s)
			b.cache = filepath.Join(publicDir(t), "cache")
			asAnother(t, func() error { return make(b.cache) })
			before, err := os.Lstat(b.cache)
			if err != nil {
				t.Fatal(err)
			}
			if out, errOut, status := b.inTime("smcr stats"); status != 0 || errOut != "" || !strings.Contains(out, " 17 (17)") {
				t.Errorf("stats: status %d, %q, %s", status, errOut, out)
			}
			if _, errOut, status := b.inTime("smcr stats reset"); status != tool.Failed || !strings.Contains(errOut, "belongs to user 65534") {
				t.Errorf("stats reset: status %d, %q", status, errOut)
			}
			e := b.env()
			shown, _, err := SinceReset(e, "kernel", s.Stats, s.Fallbacks)
			if err != nil || shown.SMCR.RXBytes != 17 {
				t.Errorf("SinceReset: %d bytes, %v", shown.SMCR.RXBytes, err)
			}
			if err := Reset(e, "kernel", s.Stats, s.Fallbacks); !errors.Is(err, errForeign) {
				t.Errorf("Reset: %v", err)
			}
			after, err := os.Lstat(b.cache)
			if err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the file has changed: %v, %v", after, err)
			}
			if _, err := os.Stat(b.cache + ".target"); !os.IsNotExist(err) {
				t.Errorf("the target of the link: %v", err)
			}
		})
	}
}

// TestSecondName checks that a file of this user that has got the name of the cache file,
// as a second name, is not overwritten.
func TestSecondName(t *testing.T) {
	testkind.System(t)
	b := newBench(t, nltest.State{})
	other := b.cache + ".precious"
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(other, b.cache); err != nil {
		t.Fatal(err)
	}
	if _, errOut, status := b.inTime("smcr stats reset"); status != tool.Failed || !strings.Contains(errOut, "more than one name") {
		t.Errorf("status %d, %q", status, errOut)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestCacheLocked checks that a command waits for the lock of another process, but not
// without limit.
func TestCacheLocked(t *testing.T) {
	testkind.System(t)
	b := newBench(t, nltest.State{})
	if _, errOut, status := b.run("smcr stats reset"); status != 0 {
		t.Fatalf("status %d, %q", status, errOut)
	}
	f, err := os.Open(b.cache)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if out, errOut, status := b.inTime("smcr stats"); out != "" || errOut != "Error: cache file lock: locked by another process\n" || status != tool.Failed {
		t.Errorf("locked: status %d, %q, %q", status, errOut, out)
	}
	done := make(chan int)
	go func() {
		_, _, status := b.run("smcr stats")
		done <- status
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if status := <-done; status != 0 {
		t.Errorf("unlocked: status %d", status)
	}
}

// TestCacheRemoved checks that a reset is not written to a file that another command has
// removed while this one waited for the lock.
func TestCacheRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	first, err := openCache(path, os.Getuid(), unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		second, err := openUnlocked(path, os.Getuid(), unix.O_RDWR)
		waits <- err
		if err != nil {
			return
		}
		defer second.Close()
		named, err := second.lock(path, time.Now().Add(lockWait))
		if named {
			err = errors.New("the removed file was taken")
		}
		waits <- err
	}()
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	first.Remove()
	first.Close()
	if err := <-waits; err != nil {
		t.Error(err)
	}
	again, err := openCache(path, os.Getuid(), unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// TestCachePath checks where the cache files are: that of the kernel where smc-tools has it,
// that of the user-space stack in the runtime directory of the user.
func TestCachePath(t *testing.T) {
	dir := publicDir(t)
	asAnother(t, func() error { return os.Mkdir(filepath.Join(dir, "own"), 0o700) })
	for _, tt := range []struct{ stack, runtime, file, want string }{
		{"kernel", "own", "", "/tmp/.smcstats.u65534"},
		{"user", "own", "", dir + "/own/smcr/stats.u65534"},
		{"user", "", "", "/tmp/.smcstats.u65534.user"}, // that of root
		{"user", "none", "", "/tmp/.smcstats.u65534.user"},
		{"user", "own", "/x", "/x"},
		{"kernel", "own", "/x", "/x"},
	} {
		t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, tt.runtime))
		env := &tool.Env{Factory: &cmdutil.Factory{}, UID: another, Getenv: func(name string) string {
			return map[string]string{CacheEnv: tt.file}[name]
		}}
		asAnother(t, func() error {
			if got := cachePathOf(env, tt.stack); got != tt.want {
				t.Errorf("%+v: %s", tt, got)
			}
			return nil
		})
	}
}
