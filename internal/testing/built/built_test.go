// SPDX-License-Identifier: Apache-2.0

package built

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestPrograms: a program runs where it was wanted, and is linked once for two that want it.
func TestPrograms(t *testing.T) {
	testkind.System(t)
	const name = "forbid"
	var kept [2]os.FileInfo
	for i := range kept {
		dir := t.TempDir()
		if err := Programs(t.Context(), dir, "smcr/internal/testing/programs/"+name); err != nil {
			t.Fatal(err)
		}
		if out, _ := exec.CommandContext(t.Context(), filepath.Join(dir, name)).CombinedOutput(); !strings.Contains(string(out), "usage") {
			t.Errorf("the program says %q", out)
		}
		var err error
		if kept[i], err = os.Stat(filepath.Join("../../../bin/built", name)); err != nil {
			t.Fatal(err)
		}
	}
	if !os.SameFile(kept[0], kept[1]) {
		t.Error("it was linked twice")
	}
	if err := Programs(t.Context(), t.TempDir(), "smcr/internal/testing/programs/none"); err == nil {
		t.Error("a program that is not there was built")
	}
}
