// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// dependencies is the document with the reason for each module.
const dependencies = moduleRoot + "/docs/dependencies.md"

// A goMod is what go mod edit -json prints about a module file.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Tool []struct{ Path string }
}

// readGoMod reads a module file.
func readGoMod(t *testing.T, name string) (m goMod) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", filepath.Join(moduleRoot, name)).Output()
	if err != nil {
		t.Fatalf("go mod edit %s: %v", name, err)
	}
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// dependencyRows returns the rows of the table in a section of a document: cells in
// backquotes without them.
func dependencyRows(text, section string) (rows [][]string) {
	_, text, _ = strings.Cut(text, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "| `")
		if !ok {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, " |"), " | ")
		cells[0] = strings.TrimSuffix(cells[0], "`")
		rows = append(rows, cells)
	}
	return rows
}

// TestDependencies checks that docs/dependencies.md has each module that go.mod requires
// directly, once and no other, in the right table: what the program links, what only tests
// use, and the tools.
func TestDependencies(t *testing.T) {
	testkind.System(t)
	b, err := os.ReadFile(dependencies)
	if err != nil {
		t.Fatal(err)
	}
	linked := linkedPackages(t)
	inModule := func(pkg, module string) bool { return pkg == module || strings.HasPrefix(pkg, module+"/") }
	want := map[string]string{} // section by module
	for _, r := range readGoMod(t, "go.mod").Require {
		switch {
		case r.Indirect:
		case slices.ContainsFunc(linked, func(p string) bool { return inModule(p, r.Path) && importedByUs(t, p) }):
			want[r.Path] = "In the program"
		default:
			want[r.Path] = "In tests only"
		}
	}
	for _, file := range []string{"tools/go.mod", "tools/packages/go.mod"} {
		for _, tool := range readGoMod(t, file).Tool {
			want[tool.Path] = "Tools"
		}
	}
	for _, section := range []string{"In the program", "In tests only", "Tools"} {
		for _, row := range dependencyRows(string(b), section) {
			name := row[0]
			switch in, ok := want[name]; {
			case !ok:
				t.Errorf("%s is there twice, or not required", name)
			case in != section:
				t.Errorf("%s is in section %q, and belongs to %q", name, section, in)
			}
			delete(want, name)
			if reason := row[len(row)-1]; len(reason) < 10 {
				t.Errorf("%s: no reason", name)
			}
			if section == "In the program" && len(row) == 3 && row[1] != "many" {
				checkImporters(t, name, row[1])
			}
		}
	}
	for name, section := range want {
		t.Errorf("no line for %s in section %q", name, section)
	}
}

// linkedPackages returns the packages that the program links.
func linkedPackages(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"/cmd/smcr").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(out))
}

// importedByUs reports whether a package of this module that ships imports a package.
func importedByUs(t *testing.T, imported string) bool {
	return slices.ContainsFunc(list(t), func(p pkg) bool {
		path, _ := rel(p.ImportPath)
		return ships(path) && slices.Contains(p.Imports, imported)
	})
}

// ships reports whether the program can link a package.
func ships(path string) bool { return !testOnly(path) && path != "internal/gendocs" }

// checkImporters compares the packages in a cell with those that import the module.
func checkImporters(t *testing.T, name, cell string) {
	t.Helper()
	var said, are []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		said = append(said, m[1])
	}
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		if ships(path) && slices.ContainsFunc(p.Imports, func(i string) bool { return i == name || strings.HasPrefix(i, name+"/") }) {
			are = append(are, path)
		}
	}
	slices.Sort(said)
	slices.Sort(are)
	if !slices.Equal(said, are) {
		t.Errorf("%s: imported by %q, the document says %q", name, are, said)
	}
}
