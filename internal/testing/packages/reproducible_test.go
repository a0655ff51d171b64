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

// epoch is the time of the files in packages and archives of the tests.
const epoch = "1700000000"

// TestReproducible makes packages and an archive twice: from this source, and from a copy of it
// at another place, with other owners, modes and times, in another time zone. They have the same
// bytes.
func TestReproducible(t *testing.T) {
	need(t, "make", "git")
	one, two := t.TempDir(), t.TempDir()
	source := copySource(t)
	config, err := filepath.Abs(filepath.Join(root, "deploy/packages/smcr.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"deb", "rpm", "dist"} {
		env := []string{"PACKAGE_VERSION=" + older, "SOURCE_DATE_EPOCH=" + epoch, "PACKAGE_CONFIG=" + config}
		runMake(t, root, env, what, "ARCHES=amd64", "ARCH=amd64", "DIST="+one, "VERSION=v"+older)
		runMake(t, source, append(env[:2:2], "TZ=Pacific/Kiritimati", "LC_ALL=C", "USER=other", "GOFLAGS=-p=2"),
			what, "ARCHES=amd64", "ARCH=amd64", "DIST="+two, "VERSION=v"+older)
	}
	files, err := os.ReadDir(one)
	if err != nil || len(files) != 5 {
		t.Fatalf("%q, %v: want two packages, an archive, a bill of materials and checksums", files, err)
	}
	for _, f := range files {
		a, err := os.ReadFile(filepath.Join(one, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(two, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is another one when it is built elsewhere (%d and %d bytes)", f.Name(), len(a), len(b))
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
