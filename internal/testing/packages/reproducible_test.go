// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReproducible makes the packages and an archive from a copy of the source at another place,
// with other owners, modes and times, and in another time zone. They have the same bytes as those
// from this source.
func TestReproducible(t *testing.T) {
	need(t, "make", "git")
	dist, again := t.TempDir(), t.TempDir()
	env := []string{"PACKAGE_VERSION=" + older, "SOURCE_DATE_EPOCH=" + epoch}
	args := []string{"ARCHES=amd64", "VERSION=v" + older}
	runMake(t, root, env, append(args, "dist", "DIST="+dist)...)
	files, err := filepath.Glob(filepath.Join(dist, "*"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%q, %v: want an archive, a bill of materials and checksums", files, err)
	}
	files = append(files, pack(t, "deb", older), pack(t, "rpm", older))

	source := copySource(t)
	env = append(env, "TZ=Pacific/Kiritimati", "LC_ALL=C", "USER=other", "GOFLAGS=-p=2")
	for _, what := range []string{"deb", "rpm", "dist"} {
		runMake(t, source, env, append(args, what, "DIST="+again)...)
	}
	for _, one := range files {
		two := filepath.Join(again, filepath.Base(one))
		a, err := os.ReadFile(one)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(two)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is another one when it is built elsewhere (%d and %d bytes)", filepath.Base(one), len(a), len(b))
		}
	}
}

// copySource copies the source, without git, to a place with another path, owner and mode.
func copySource(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "another", "place")
	files := output(t, "git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for _, name := range strings.Split(strings.TrimSuffix(files, "\x00"), "\x00") {
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		st, err := os.Lstat(from)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed since the last commit
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if st.Mode().Type() == os.ModeSymlink {
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, st.Mode().Perm()&0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
