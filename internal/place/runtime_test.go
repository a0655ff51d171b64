// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestRuntime checks that the directory for files of a user is one to which nobody else can
// write, or none.
func TestRuntime(t *testing.T) {
	_, user := users(t)
	check := func(want string, target error) {
		t.Helper()
		as(t, other, func() {
			if dir, err := runtimeDir(user.own, other); dir != want || !errors.Is(err, target) {
				t.Errorf("%q, %v; want %q, %v", dir, err, want, target)
			}
		})
	}
	dir := filepath.Join(user.own, dirName)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(dir, nil)
	check(dir, nil) // it exists
	do(os.Chmod(dir, 0o777))
	check("", fs.ErrPermission)
	do(errors.Join(os.Chmod(dir, 0o755), os.Lchown(dir, other-1, other-1)))
	check("", fs.ErrPermission)
	do(os.Lchown(dir, 0, 0)) // trusted, but not writable
	check("", fs.ErrPermission)
	do(errors.Join(os.Remove(dir), os.Symlink("/tmp", dir), os.Lchown(dir, other, other)))
	check("", fs.ErrPermission)
	do(errors.Join(os.Remove(dir), os.Chmod(user.own, 0o777)))
	check("", fs.ErrPermission)
	do(os.RemoveAll(user.own))
	check("", fs.ErrNotExist)
}
