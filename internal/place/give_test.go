// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// given returns the views of root, of the user to whom root has given the place, and of a
// third user.
func given(t *testing.T) (root, stack, third *view) {
	t.Helper()
	root, stack = users(t)
	w := *stack
	w.uid, w.own = other-1, root.own
	if err := root.give(other, other); err != nil {
		t.Fatal(err)
	}
	return root, stack, &w
}

// TestGive checks that every user trusts a stack of the user to whom root has given the
// place, and that this user can take it, and no other.
func TestGive(t *testing.T) {
	root, user, third := given(t)
	as(t, other-1, func() {
		if _, err := third.takeAt(third.root); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a third user takes the place: %v", err)
		}
	})
	var c *Claim
	as(t, other, func() {
		var err error
		if c, err = stack(user); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	if c.dir != root.dir(root.root) {
		t.Errorf("the stack is at %s", c.dir)
	}
	if err := root.reach(); err != nil {
		t.Errorf("root: %v", err)
	}
	as(t, other, func() {
		if err := user.reach(); err != nil {
			t.Errorf("the user: %v", err)
		}
	})
	as(t, other-1, func() {
		if err := third.reach(); err != nil {
			t.Errorf("a third user: %v", err)
		}
	})
	if err := root.give(0, 0); !errors.Is(err, ErrTaken) {
		t.Errorf("root takes the place from a stack: %v", err)
	}
	if err := root.give(other, other); err != nil {
		t.Errorf("given again: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	// The same user keeps its files, another one gets none.
	name := filepath.Join(c.dir, State)
	if err := errors.Join(os.WriteFile(name, nil, 0o644), os.Chown(name, other, other), root.give(other, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(name); err != nil {
		t.Error(err)
	}
	if err := root.give(0, 0); err != nil {
		t.Fatal(err)
	}
	if left := names(t, c.dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	newStack(t, root)
	as(t, other, func() {
		if err := user.reach(); err != nil {
			t.Errorf("the stack of root: %v", err)
		}
	})
}

// TestGiveUntrusted checks that only root, in directories of root, can make a user trusted.
func TestGiveUntrusted(t *testing.T) {
	testkind.System(t)
	dial := func(t *testing.T, v *view) error {
		t.Helper()
		_, err := v.dial(t.Context(), Commands)
		return err
	}
	for name, do := range map[string]func(root *view) error{
		"others can write above":       func(v *view) error { return os.Chmod(v.root, 0o777) },
		"others can write, sticky":     func(v *view) error { return os.Chmod(v.root, 0o777|fs.ModeSticky) },
		"a group can write above":      func(v *view) error { return os.Chmod(v.root, 0o775) },
		"above belongs to the user":    func(v *view) error { return os.Chown(v.root, other, other) },
		"top belongs to the user":      func(v *view) error { return os.Chown(filepath.Join(v.root, dirName), other, other) },
		"others can write to the top":  func(v *view) error { return os.Chmod(filepath.Join(v.root, dirName), 0o777|fs.ModeSticky) },
		"others can write to the dir":  func(v *view) error { return os.Chmod(v.dir(v.root), 0o757) },
		"the dir is in another's base": func(v *view) error { v.root, v.own = v.own, v.root; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			root, user, _ := given(t)
			stackAs(t, other, user)
			if err := do(root); err != nil {
				t.Fatal(err)
			}
			if err := dial(t, root); !errors.Is(err, os.ErrPermission) {
				t.Errorf("root trusts it: %v", err)
			}
		})
	}
	t.Run("a socket of a third user", func(t *testing.T) {
		root, user, _ := given(t)
		c := stackAs(t, other, user)
		if err := os.Lchown(filepath.Join(c.dir, Commands), other-1, other-1); err != nil {
			t.Fatal(err)
		}
		if err := dial(t, root); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a third user listens", func(t *testing.T) {
		root, _, _ := given(t)
		path := filepath.Join(root.dir(root.root), Commands)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		as(t, other-1, func() {
			if err := unix.Listen(fd, 1); err != nil {
				t.Error(err)
			}
		})
		if err := dial(t, root); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "of user 65532 listens") {
			t.Errorf("%v", err)
		}
	})
	t.Run("not root", func(t *testing.T) {
		as(t, other, func() {
			if err := Give(other, other); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%v", err)
			}
		})
	})
}

// TestGiveHostile checks that what the earlier user has left in the directory is removed and
// that nothing else changes.
func TestGiveHostile(t *testing.T) {
	testkind.System(t)
	root, user, _ := given(t)
	dir := root.dir(root.root)
	precious := filepath.Join(root.own, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(precious, filepath.Join(dir, State)); err != nil { // as if links were not protected
		t.Fatal(err)
	}
	as(t, other, func() {
		for _, err := range []error{
			os.Remove(filepath.Join(dir, lockName)),
			os.Symlink(precious, filepath.Join(dir, lockName)),
			os.Symlink(precious, filepath.Join(dir, givenName)),
			os.Symlink(filepath.Dir(precious), filepath.Join(dir, "link")),
			os.Mkdir(filepath.Join(dir, "empty"), 0o755),
			unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, Commands), Net: "unixpacket"})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = l.Close() })
	})
	if err := root.give(other-1, other-1); err != nil {
		t.Fatal(err)
	}
	if left := names(t, dir); !slices.Equal(left, []string{lockName}) {
		t.Errorf("left: %q", left)
	}
	var st unix.Stat_t
	if err := unix.Stat(precious, &st); err != nil || st.Uid != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("%+v, %v", st, err)
	}
	as(t, other, func() {
		if _, err := user.takeAt(user.root); err == nil {
			t.Error("the earlier user takes the place")
		}
	})
}

// TestGivenStays: other stacks do not sweep a place that was given and that no stack has taken yet, as long as its network namespace exists.
func TestGivenStays(t *testing.T) {
	root, user, _ := given(t)
	sweeper := *root
	sweeper.cookie, sweeper.ino = 1, 1
	sweep := func(alive ...uint64) {
		t.Helper()
		there := map[uint64]bool{}
		for _, ino := range alive {
			there[ino] = true
		}
		if err := sweeper.sweep(func() (map[uint64]bool, error) { return there, nil }); err != nil {
			t.Error(err)
		}
	}
	sweep(root.ino)
	stackAs(t, other, user).die(t)
	sweep(root.ino)
	stackAs(t, other, user).die(t)
	// It is given again to the user who has it, whose files are gone.
	dir := root.dir(root.root)
	if err := errors.Join(os.Remove(filepath.Join(dir, lockName)), root.give(other, other)); err != nil {
		t.Fatal(err)
	}
	sweep(root.ino)
	if got := names(t, dir); !slices.Contains(got, lockName) {
		t.Errorf("left: %q", got)
	}
	for _, name := range sockets {
		_ = os.Remove(filepath.Join(dir, name))
	}
	sweep(200)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the network namespace is gone, the directory is not: %v: %q", err, names(t, dir))
	}
}

// TestGiveSwept gives a place while others sweep.
func TestGiveSwept(t *testing.T) {
	testkind.System(t)
	root, user, _ := given(t)
	sweeper := *root
	sweeper.cookie, sweeper.ino = 1, 1
	done := make(chan struct{})
	var sweeps sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := sweeper.sweep(func() (map[uint64]bool, error) { return map[uint64]bool{root.ino: true}, nil }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 200 {
		if err := errors.Join(os.RemoveAll(root.dir(root.root)), root.give(other, other)); err != nil {
			t.Error(err)
			break
		}
		var err error
		as(t, other, func() {
			var c *Claim
			if c, err = user.takeAt(user.root); err == nil {
				err = c.Close()
			}
		})
		if err != nil {
			t.Errorf("the place that was given: %v", err)
			break
		}
	}
	close(done)
	sweeps.Wait()
}
