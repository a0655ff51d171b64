// SPDX-License-Identifier: Apache-2.0

package place

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// neighbour takes the place of another network namespace of the machine of v.
func neighbour(t *testing.T, v *view, cookie uint64) *Claim {
	t.Helper()
	n := *v
	n.cookie, n.ino = cookie, cookie
	c, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestAddresses: what a stack writes can be read by the others until it ends, in order or not.
func TestAddresses(t *testing.T) {
	v := newView(t)
	a, b := neighbour(t, v, 1), neighbour(t, v, 2)
	if got := a.Others(); len(got) != 1 || got[0] != 2 {
		t.Fatal(got)
	}
	read := func(before time.Time) (string, time.Time, error) {
		t.Helper()
		content, at, err := a.ReadAddresses(2, before)
		return string(content), at, err
	}
	if got, _, err := read(time.Time{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before it was written: %q, %v", got, err)
	}
	if err := b.WriteAddresses([]byte("one")); err != nil {
		t.Fatal(err)
	}
	got, at, err := read(time.Time{})
	if got != "one" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, _, err := read(at); !errors.Is(err, ErrUnchanged) {
		t.Error(err)
	}
	name := filepath.Join(b.Dir(), addressesName)
	if st, err := os.Lstat(name); err != nil || st.Mode() != 0o644 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := b.WriteAddresses([]byte("two")); err != nil {
		t.Fatal(err)
	}
	if got, _, err := read(time.Time{}); got != "two" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// A killed stack leaves the file, and the kernel takes the lock away.
	if err := b.lock.Close(); err != nil {
		t.Fatal(err)
	}
	if got, _, err := read(time.Time{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a killed stack: %q, %v", got, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	b = neighbour(t, v, 2)
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed stack has left: %v", err)
	}
	if err := b.WriteAddresses([]byte("three")); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
	if err := b.WriteAddresses(nil); err == nil {
		t.Error("written after the end")
	}
}

// TestAddressesHostile: nothing that another user has put there is read, nothing makes the
// reader wait, and nothing has more than a bound.
func TestAddressesHostile(t *testing.T) {
	for name, put := range map[string]func(name string) error{
		"a link":      func(name string) error { return os.Symlink("/etc/hostname", name) },
		"a FIFO":      func(name string) error { return syscall.Mkfifo(name, 0o644) },
		"a directory": func(name string) error { return os.Mkdir(name, 0o755) },
		"a device":    func(name string) error { return syscall.Mknod(name, syscall.S_IFCHR|0o644, 1<<8|5) },
		"too much":    func(name string) error { return os.WriteFile(name, bytes.Repeat([]byte("x"), MaxAddresses+1), 0o644) },
		"of another user": func(name string) error {
			return errors.Join(os.WriteFile(name, []byte("x"), 0o644), os.Chown(name, other, other))
		},
	} {
		t.Run(name, func(t *testing.T) {
			needRoot(t)
			v := newView(t)
			a, b := neighbour(t, v, 1), neighbour(t, v, 2)
			file := filepath.Join(b.Dir(), addressesName)
			if err := put(file); err != nil {
				t.Fatal(err)
			}
			if got, _, err := a.ReadAddresses(2, time.Time{}); err == nil {
				t.Errorf("read %q", got)
			}
			if name == "a directory" {
				_ = os.Remove(file)
			}
		})
	}
}

// TestAddressesOfDead: the addresses of a stack that was killed, and cannot end because of a system
// call, do not count, although the kernel says that it has the lock. Those of one that lives do, and
// of one of which nobody can know.
func TestAddressesOfDead(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	dead := me
	dead.start++ // another process has the number now
	unseen := dead
	unseen.pidns++
	for name, tt := range map[string]struct {
		holders []holder
		counts  bool
	}{
		"lives":            {[]holder{me}, true},
		"dead":             {[]holder{dead}, false},
		"two dead":         {[]holder{dead, dead}, false},
		"one of two lives": {[]holder{dead, me}, true},
		"not to be known":  {[]holder{unseen}, true},
		"an older release": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(t)
			a, b := neighbour(t, v, 1), neighbour(t, v, 2)
			if err := b.WriteAddresses([]byte("192.0.2.1\n")); err != nil {
				t.Fatal(err)
			}
			ino, _, err := readHolders(b.lock)
			if err == nil {
				err = writeHolders(b.lock, ino, tt.holders)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := a.ReadAddresses(2, time.Time{})
			if counts := err == nil && len(got) > 0; counts != tt.counts || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q, %v; want it to count: %v", got, err, tt.counts)
			}
		})
	}
}
