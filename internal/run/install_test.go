// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestInstall copies the program of the test, also over an earlier copy that is being executed
// or that nobody may write to.
func TestInstall(t *testing.T) {
	want, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "smcr")
	if err := os.WriteFile(name, []byte("an earlier release"), 0o500); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := install(dir); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
		}
		if st, err := os.Stat(name); err != nil || st.Mode() != 0o755 {
			t.Errorf("mode %v, %v", st.Mode(), err)
		}
	}
	if err := install(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such directory: %v", err)
	}
	// A copy that fails at the end leaves nothing.
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := install(dir); err == nil {
		t.Error("no error over a directory")
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}
