// SPDX-License-Identifier: Apache-2.0

package place

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	_ "smcr/internal/testing/firstthread"

	"smcr/internal/testing/testkind"
)

// other is a user without privileges.
const other = 65533

// newView returns the view of a machine with nothing in its runtime directories.
func newView(t *testing.T) *view {
	t.Helper()
	v := &view{root: t.TempDir(), own: t.TempDir(), uid: uint32(os.Geteuid()), cookie: 42, ino: 7}
	for _, base := range v.bases() {
		if err := os.Chmod(base, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// needRoot skips a test that needs several users.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
}

// as runs f as a user without privileges: the kernel checks the rights of the thread.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	needRoot(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked, so that the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
			t.Errorf("setgroups: %v", e)
			return
		}
		for _, nr := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, e := unix.RawSyscall(nr, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				t.Errorf("become user %d: %v", uid, e)
				return
			}
		}
		f()
	}()
	<-done
}

// users returns the views of root and of user other of the same machine. Both have a
// runtime directory.
func users(t *testing.T) (root, user *view) {
	t.Helper()
	needRoot(t)
	root = newView(t)
	// Other users may not enter the directories above t.TempDir.
	dir, err := os.MkdirTemp("", "smcr-place-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root.root, root.own = filepath.Join(dir, "run"), filepath.Join(dir, "0")
	u := *root
	u.uid, u.own = other, filepath.Join(dir, "user")
	for _, base := range []string{dir, root.root, root.own, u.own} {
		_ = os.Mkdir(base, 0o755)
		if err := os.Chmod(base, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(u.own, other, other); err != nil {
		t.Fatal(err)
	}
	return root, &u
}

// stack takes the place and listens, like smcr serve.
func stack(v *view) (*Claim, error) {
	c, err := v.take()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{Commands} {
		if _, err := c.Listen(name); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func newStack(t *testing.T, v *view) *Claim {
	t.Helper()
	c, err := stack(v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// stackAs is newStack for a stack of another user.
func stackAs(t *testing.T, uid int, v *view) (c *Claim) {
	t.Helper()
	var err error
	as(t, uid, func() { c, err = stack(v) })
	if err != nil || c == nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// die ends a stack like SIGKILL.
func (c *Claim) die(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, l := range c.listeners {
		_ = l.Close()
	}
	c.unguard()
	if err := c.lock.Close(); err != nil {
		t.Error(err)
	}
}

// reach connects to each socket.
func (v *view) reach() error {
	for _, name := range []string{Commands} {
		c, err := v.dial(context.Background(), name)
		if err != nil {
			return err
		}
		_ = c.Close()
	}
	return nil
}

func TestTake(t *testing.T) {
	v := newView(t)
	if err := v.reach(); !errors.Is(err, ErrAbsent) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("before: %v", err)
	}
	defer unix.Umask(unix.Umask(0o077)) // the umask of the process that starts the stack does not matter
	c := newStack(t, v)
	for path, want := range map[string]fs.FileMode{
		filepath.Join(v.root, dirName): fs.ModeDir | 0o755, v.dir(v.root): fs.ModeDir | 0o755,
		filepath.Join(c.dir, Commands): fs.ModeSocket | 0o666,
		filepath.Join(c.dir, lockName): 0o600,
	} {
		if st, err := os.Lstat(path); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, st, err, want)
		}
	}
	if err := v.reach(); err != nil {
		t.Error(err)
	}
	if _, err := v.take(); !errors.Is(err, ErrTaken) {
		t.Errorf("a second one: %v", err)
	}
	// Another network namespace has another place.
	next := *v
	next.cookie++
	if err := next.reach(); !errors.Is(err, ErrAbsent) {
		t.Errorf("of another namespace: %v", err)
	}
	newStack(t, &next)
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if err := v.reach(); !errors.Is(err, ErrAbsent) {
		t.Errorf("afterwards: %v", err)
	}
	if names := names(t, c.dir); len(names) != 1 || names[0] != lockName {
		t.Errorf("left: %q", names)
	}
	if _, err := c.Listen(Commands); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a socket of who has given the place back: %v", err)
	}
	newStack(t, v)
	if err := errors.Join(v.reach(), next.reach()); err != nil {
		t.Error(err)
	}
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestStale: the sockets that a killed stack leaves are not taken for a stack.
func TestStale(t *testing.T) {
	v := newView(t)
	newStack(t, v).die(t)
	if err := v.reach(); !errors.Is(err, ErrAbsent) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("the last word is that of the user's place: %v", err)
	}
	if _, err := v.dialAt(t.Context(), v.root, Commands); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a stale socket: %v", err)
	}
	c, err := v.take()
	if err != nil {
		t.Fatal(err)
	}
	if names := names(t, c.dir); len(names) != 1 {
		t.Errorf("the next one leaves %q", names)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	newStack(t, v)
	if err := v.reach(); err != nil {
		t.Error(err)
	}
}

// TestRemoved: a stack whose directory was removed does not change the directory of the
// next stack.
func TestRemoved(t *testing.T) {
	v := newView(t)
	c := newStack(t, v)
	if err := os.RemoveAll(filepath.Join(v.root, dirName)); err != nil {
		t.Fatal(err)
	}
	newStack(t, v)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := v.reach(); err != nil {
		t.Error(err)
	}
}

// TestRace: of several stacks that start at once, exactly one gets the place, also while
// others sweep.
func TestRace(t *testing.T) {
	v := newView(t)
	sweeper := *v
	sweeper.cookie, sweeper.ino = 1, 1
	stop := make(chan struct{})
	var sweeps sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := sweeper.sweep(func() (map[uint64]bool, error) { return nil, nil }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 30 {
		var got atomic.Int32
		var mine atomic.Pointer[Claim]
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				switch c, err := stack(v); {
				case err == nil:
					got.Add(1)
					mine.Store(c)
				case !errors.Is(err, ErrTaken):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := got.Load(); n != 1 {
			t.Fatalf("%d stacks have the place", n)
		}
		if err := v.reach(); err != nil {
			t.Error(err)
		}
		if err := mine.Load().Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	sweeps.Wait()
}

// TestTakeWaits: a stack waits for another one that is ending. It waits only a short time
// for one that has the lock and does not listen.
func TestTakeWaits(t *testing.T) {
	testkind.System(t)
	v := newView(t)
	c, err := v.take()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.take(); !errors.Is(err, ErrTaken) {
		t.Errorf("%v", err)
	}
	time.AfterFunc(10*takeTick, func() { _ = c.Close() })
	newStack(t, v)
}

func TestOwnBase(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	uid := uint32(os.Geteuid())
	for _, test := range []struct {
		xdg  string
		uid  uint32
		want string
	}{
		{dir, uid, dir},
		{"/", other, "/run/user/65533"}, // XDG_RUNTIME_DIR of another user remains after su, for example
		{"", other, "/run/user/65533"},
		{".", other, "/run/user/65533"},
		{file, uid, fmt.Sprintf("/run/user/%d", uid)},
		{filepath.Join(dir, "none"), other, "/run/user/65533"},
	} {
		if got := ownBase(test.xdg, test.uid); got != test.want {
			t.Errorf("XDG_RUNTIME_DIR=%q of user %d: %s, want %s", test.xdg, test.uid, got, test.want)
		}
	}
}

// TestCurrent: the network namespace of each thread has a number that does not change.
func TestCurrent(t *testing.T) {
	a, err := current()
	if err != nil {
		t.Fatal(err)
	}
	b, err := current()
	if err != nil || *a != *b || a.cookie == 0 || a.ino == 0 {
		t.Errorf("%+v and %+v, %v", a, b, err)
	}
	dir, err := Dir()
	if err != nil || filepath.Dir(dir) != "/run/smcr" || strings.Trim(filepath.Base(dir), "0123456789") != "" {
		t.Errorf("%q, %v", dir, err)
	}
}

// TestClosedRuntime: a service of systemd may not enter the runtime directories of users
// (ProtectHome=yes). That is no stack, and not an error.
func TestClosedRuntime(t *testing.T) {
	_, user := users(t)
	dir := filepath.Dir(user.own)
	user.own = filepath.Join(dir, "home", "user")
	if err := os.MkdirAll(user.own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, closed := range []string{filepath.Dir(user.own), user.own} {
		if err := os.Chmod(closed, 0); err != nil {
			t.Fatal(err)
		}
		as(t, other, func() {
			if c, err := user.dial(t.Context(), Commands); !errors.Is(err, ErrAbsent) {
				t.Errorf("%s is closed: %v, %v", closed, c, err)
			}
		})
		if err := os.Chmod(closed, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
