// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGridRows: the picture is as high as the panels, whatever their order in the file.
func TestGridRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dashboard.json")
	const text = `{"panels": [{"gridPos": {"y": 9, "h": 8}}, {"gridPos": {"y": 1, "h": 4}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if rows, err := gridRows(file); err != nil || rows != 17 {
		t.Errorf("%d rows, %v, want 17", rows, err)
	}
}

// TestUnpack: npm, esbuild and the browser find their files.
func TestUnpack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	if err := unpack(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"package.json", "page.jsx", "page.html"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
