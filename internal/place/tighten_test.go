// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVolume: a stack uses a new volume of a pod, which is empty and writable for all, and
// every user trusts it then. What another user has put into the volume stays and keeps the
// stack from starting.
func TestVolume(t *testing.T) {
	root, user := users(t)
	top := filepath.Join(root.root, dirName)
	fresh := func(mode fs.FileMode) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(top), os.Mkdir(top, 0o755), os.Chmod(top, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []fs.FileMode{0o777, 0o777 | fs.ModeSetgid, 0o775} {
		fresh(mode)
		c := newStack(t, root)
		st, err := os.Stat(top)
		if err != nil {
			t.Fatal(err)
		}
		if want := mode&^0o022 | fs.ModeDir; st.Mode() != want {
			t.Errorf("mode %v instead of %v", st.Mode(), want)
		}
		as(t, other, func() {
			if err := user.reach(); err != nil {
				t.Errorf("mode %v: %v", mode, err)
			}
		})
		// A stack that was killed leaves its files. The next one uses the directory again.
		c.die(t)
		newStack(t, root).die(t)

		fresh(mode)
		if err := root.give(other, other); err != nil {
			t.Errorf("mode %v, given to a user: %v", mode, err)
		}
	}

	fresh(0o777)
	as(t, other, func() {
		if err := os.Mkdir(user.dir(root.root), 0o755); err != nil {
			t.Error(err)
		}
	})
	for name, do := range map[string]func() error{
		"take": func() error { _, err := root.take(); return err },
		"give": func() error { return root.give(other, other) },
	} {
		err := do()
		if u, ok := errors.AsType[*UntrustedError](err); !ok || u.Path != top || !strings.Contains(err.Error(), "mode 0777") {
			t.Errorf("%s, with a file of another user: %v", name, err)
		}
	}
	if st, err := os.Stat(top); err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("the directory was changed: %v, %v", st.Mode(), err)
	}

	// The directory of another user is not changed, whatever its mode.
	fresh(0o777)
	if err := os.Chown(top, other, other); err != nil {
		t.Fatal(err)
	}
	if _, err := root.take(); err == nil || !strings.Contains(err.Error(), "belongs to user") {
		t.Errorf("the directory of another user: %v", err)
	}
}
