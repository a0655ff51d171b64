// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestUpToDate fails when the files in the tree are not those that the commands
// make.
func TestUpToDate(t *testing.T) {
	const root = "../.."
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Errorf("%v: run go generate ./internal/gendocs", err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate ./internal/gendocs", name)
		}
	}
	for _, dir := range []string{"man", "completions"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, ok := files[filepath.Join(dir, e.Name())]; !ok {
				t.Errorf("%s/%s belongs to no command", dir, e.Name())
			}
		}
	}
}
