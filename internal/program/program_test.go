// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"a/run": 0o755, "b/run": 0o755, "b/only": 0o755, "a/text": 0o644, "run": 0o755} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for _, c := range []struct {
		path, name, want string
		status           int
	}{
		{"a:b", "run", "a/run", 0},
		{"a:b", "only", "b/only", 0},
		{":a", "run", "./run", 0},
		{"a", "b/run", "b/run", 0},
		{"a:b", "none", "", 127},
		{"a:b", "./none", "", 127},
		{"a:b", "text", "", 126},
		{".", "a", "", 126},
	} {
		t.Setenv("PATH", c.path)
		got, err := Find(c.name)
		var se *StartError
		status := 0
		if errors.As(err, &se) {
			status = se.ExitStatus()
		}
		if got != c.want || status != c.status || (err == nil) != (status == 0) {
			t.Errorf("%s in %s: %q, status %d, %v; want %q, %d", c.name, c.path, got, status, err, c.want, c.status)
		}
	}
}
