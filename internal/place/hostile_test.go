// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestUsers: a user who may not write to root's directory has a separate place, where
// root and other users do not look. This user cannot take root's place.
func TestUsers(t *testing.T) {
	testkind.System(t)
	root, user := users(t)
	third := *user
	third.uid, third.own = other-1, root.own
	var c *Claim
	as(t, other, func() {
		var err error
		if c, err = stack(user); err != nil {
			t.Error(err)
			return
		}
		if c.dir != user.dir(user.own) {
			t.Errorf("the place of a user is %s", c.dir)
		}
		if err := user.reach(); err != nil {
			t.Errorf("the user's own: %v", err)
		}
		if _, err := user.take(); !errors.Is(err, ErrTaken) {
			t.Errorf("the user's second: %v", err)
		}
	})
	if t.Failed() {
		return
	}
	for _, v := range []*view{root, &third} {
		if err := v.reach(); !errors.Is(err, ErrAbsent) {
			t.Errorf("user %d finds user %d's: %v", v.uid, other, err)
		}
	}
	rc := newStack(t, root)
	as(t, other, func() {
		if conn, err := user.dial(t.Context(), Commands); err != nil {
			t.Error(err)
		} else if got := conn.RemoteAddr().String(); !strings.HasPrefix(got, rc.dir+"/") {
			t.Errorf("with both there the user gets %s", got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := user.reach(); err != nil {
			t.Errorf("root's: %v", err)
		}
		if _, err := user.take(); !errors.Is(err, ErrTaken) {
			t.Errorf("beside root's: %v", err)
		}
		// A process that can open the lock file can hold the lock.
		if f, err := os.Open(filepath.Join(rc.dir, lockName)); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("root's lock: %v, %v", f, err)
		}
		// The user cannot make files there.
		for _, name := range []string{filepath.Join(rc.dir, Commands), filepath.Join(rc.dir, "new"), filepath.Join(root.root, dirName, "43")} {
			_ = os.Remove(name)
			if l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"}); err == nil {
				t.Errorf("the user has %s", l.Addr())
			}
		}
	})
	rc.die(t)
	as(t, other, func() {
		c, err := stack(user)
		if err != nil {
			t.Errorf("after the end of root's: %v", err)
			return
		}
		if err := user.reach(); err != nil {
			t.Errorf("past a stale socket: %v", err)
		}
		_ = c.Close()
		bare := *user
		bare.own = filepath.Join(user.own, "none")
		if _, err := bare.take(); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
			t.Errorf("no place at all: %v", err)
		}
	})
	if err := root.reach(); !errors.Is(err, ErrAbsent) {
		t.Error(err)
	}
}

// TestUntrusted: files that other users than root and this user could have made are not
// taken for a stack, and are not changed.
func TestUntrusted(t *testing.T) {
	testkind.System(t)
	needRoot(t)
	chown := func(path string) error { return os.Lchown(path, other, other) }
	link := func(path string) error {
		return errors.Join(os.Rename(path, path+".target"), os.Symlink(path+".target", path), chown(path))
	}
	file := func(path string) error {
		return errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("precious"), 0o600))
	}
	const top, dir, socket = 0, 1, 2
	for _, test := range []struct {
		name string
		what int
		do   func(path string) error
		says string
		take bool // it prevents a stack from starting
	}{
		{"root's directory of another user", top, chown, "belongs to user 65533", true},
		{"root's directory for all", top, func(p string) error { return os.Chmod(p, 0o777) }, "writable for other users (mode 0777)", true},
		{"root's directory for a group, sticky", top, func(p string) error { return os.Chmod(p, 0o775|fs.ModeSticky) }, "writable for other users (mode 0775)", true},
		{"root's directory is a link", top, link, "is a symbolic link, made by user 65533", true},
		{"root's directory is a file", top, file, "is not a directory", true},
		{"directory of another user, below one for a group", dir, func(p string) error {
			return errors.Join(chown(p), os.Chmod(filepath.Dir(filepath.Dir(p)), 0o775|fs.ModeSticky))
		}, "belongs to user 65533", true},
		{"directory for all", dir, func(p string) error { return os.Chmod(p, 0o757) }, "writable for other users (mode 0757)", true},
		{"directory is a link", dir, link, "is a symbolic link", true},
		{"directory is a file", dir, file, "is not a directory", true},
		{"socket of another user", socket, chown, "belongs to user 65533", false},
		{"socket is a link", socket, link, "is a symbolic link", false},
		{"socket is a file", socket, file, "is not a socket", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newView(t)
			c := newStack(t, v)
			path := []string{filepath.Dir(c.dir), c.dir, filepath.Join(c.dir, Commands)}[test.what]
			if err := test.do(path); err != nil {
				t.Fatal(err)
			}
			_, err := v.dial(t.Context(), Commands)
			if u, ok := errors.AsType[*UntrustedError](err); !ok || u.Path != path || !strings.Contains(err.Error(), test.says) || !errors.Is(err, os.ErrPermission) {
				t.Errorf("dial: %v, want %q of %s", err, test.says, path)
			}
			if errors.Is(err, ErrAbsent) {
				t.Error("the same as no stack")
			}
			c.die(t)
			c, err = v.take()
			if err == nil {
				defer c.Close()
			}
			if u, ok := errors.AsType[*UntrustedError](err); ok != test.take || ok && u.Path != path {
				t.Errorf("take: %v", err)
			}
			if b, err := os.ReadFile(path); test.take && err == nil && string(b) != "precious" {
				t.Errorf("the file has %q", b)
			}
		})
	}
	t.Run("who listens", func(t *testing.T) {
		v := newView(t)
		c := newStack(t, v)
		path := filepath.Join(c.dir, Commands)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		as(t, other, func() { // the kernel records which user calls listen
			if err := unix.Listen(fd, 1); err != nil {
				t.Error(err)
			}
		})
		_, err = v.dial(t.Context(), Commands)
		if u, ok := errors.AsType[*UntrustedError](err); !ok || u.Owner != other || !strings.Contains(err.Error(), "of user 65533 listens") {
			t.Errorf("%v", err)
		}
	})
	t.Run("nothing there", func(t *testing.T) {
		v := newView(t)
		top := filepath.Join(v.root, dirName)
		if err := errors.Join(os.Mkdir(top, 0o755), chown(top)); err != nil {
			t.Fatal(err)
		}
		if err := v.reach(); !errors.Is(err, ErrAbsent) {
			t.Errorf("a directory of another user with nothing in it pretends nothing: %v", err)
		}
	})
}

// TestUserNamespace: a user namespace shows root of the host as another user, who is not
// trusted. The error gives this reason.
func TestUserNamespace(t *testing.T) {
	needRoot(t)
	v := newView(t)
	c := newStack(t, v)
	for _, path := range []string{filepath.Dir(c.dir), c.dir} {
		if err := os.Chown(path, overflowUID, overflowUID); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.reach(); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("%v", err)
	}
}

// TestSweep removes only directories of namespaces that do not exist any more and that
// have no stack.
func TestSweep(t *testing.T) {
	v := newView(t)
	top := filepath.Join(v.root, dirName)
	at := func(cookie, ino uint64) *view {
		w := *v
		w.cookie, w.ino = cookie, ino
		return &w
	}
	newStack(t, v)
	for _, w := range []*view{at(1, 100), at(2, 100), at(3, 200), at(4, 7)} {
		c, err := stack(w)
		if err != nil {
			t.Fatal(err)
		}
		if w.cookie == 2 {
			defer c.Close()
			continue // a stack whose namespace this process cannot see
		}
		c.die(t)
	}
	elsewhere := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(top, "state-1.yaml"), nil, 0o644),
		os.WriteFile(filepath.Join(top, "1", State), nil, 0o644),
		os.WriteFile(filepath.Join(top, "5"), nil, 0o644),
		os.Mkdir(filepath.Join(top, "6"), 0o755), // of a stack that was killed when it began
		os.Mkdir(filepath.Join(top, "name"), 0o755),
		os.WriteFile(filepath.Join(elsewhere, lockName), nil, 0o600),
		os.Symlink(elsewhere, filepath.Join(top, "8")),
		os.Mkdir(filepath.Join(top, "9"), 0o755),
		os.WriteFile(filepath.Join(top, "9", "precious"), nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := v.sweep(func() (map[uint64]bool, error) { return map[uint64]bool{7: true, 200: true}, nil }); err != nil {
		t.Error(err)
	}
	// 4 was another namespace that had the same inode number before this one.
	want := "2 3 42 5 8 9 name state-1.yaml"
	if got := strings.Join(names(t, top), " "); got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
	if _, err := os.Lstat(filepath.Join(elsewhere, lockName)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(v.reach(), at(2, 100).reach()); err != nil {
		t.Error(err)
	}
	broken := errors.New("nothing is known")
	if err := v.sweep(func() (map[uint64]bool, error) { return nil, broken }); !errors.Is(err, broken) || len(names(t, top)) != 8 {
		t.Errorf("%v, %q", err, names(t, top))
	}
	// A directory that belongs to another user is left alone.
	if os.Geteuid() == 0 {
		if err := os.Lchown(top, other, other); err != nil {
			t.Fatal(err)
		}
		if err := v.sweep(func() (map[uint64]bool, error) { return nil, nil }); err != nil || len(names(t, top)) != 8 {
			t.Errorf("%v, %q", err, names(t, top))
		}
	}
}
