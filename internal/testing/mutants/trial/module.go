// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"smcr/internal/testing/mutants/mutate"
)

// activePath is the package that mutated code asks.
const activePath = "smcr/internal/testing/mutants/active"

// A Module has packages with all mutants, and compiles their tests.
type Module struct {
	Mutants []mutate.Mutant // Mutants[i] has ID i+1
	dir     string          // temporary: overlay, binaries, files of tests
	overlay string
	root    bool
}

// listed is what go list tells about a package.
type listed struct {
	ImportPath, Dir, Export string
	DepOnly                 bool
	GoFiles                 []string
	TestImports             []string
	XTestImports            []string
}

// Write writes all mutants of some packages of the module, named as for go list. With
// asRoot, tests have the rights of the caller. Close removes what it has written.
func Write(ctx context.Context, set mutate.Set, asRoot bool, patterns ...string) (*Module, error) {
	pkgs, err := list(ctx, append([]string{"-deps", "-export", activePath}, patterns...))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "smcr-mutants-")
	if err != nil {
		return nil, err
	}
	m := &Module{dir: dir, overlay: filepath.Join(dir, "overlay.json"), root: asRoot}
	if err := m.write(set, pkgs); err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

// write writes the mutated files and the overlay.
func (m *Module) write(set mutate.Set, pkgs []listed) error {
	if err := os.Chmod(m.dir, 0o755); err != nil {
		return err
	}
	export := map[string]string{}
	for _, p := range pkgs {
		export[p.ImportPath] = p.Export
	}
	// One importer for all packages: it knows each dependency once.
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if export[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(export[path])
	})
	replace := map[string]string{}
	for i, p := range pkgs {
		if p.DepOnly || p.ImportPath == activePath || p.Dir == "" {
			continue
		}
		files, err := m.mutate(set, p, imp)
		if err != nil {
			return err
		}
		for name, text := range files {
			to := filepath.Join(m.dir, strconv.Itoa(i)+"-"+name)
			if err := os.WriteFile(to, text, 0o644); err != nil {
				return err
			}
			replace[filepath.Join(p.Dir, name)] = to
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(m.overlay, b, 0o644)
}

// mutate returns the mutated files of a package and adds its mutants.
func (m *Module) mutate(set mutate.Set, p listed, imp types.Importer) (map[string][]byte, error) {
	src := mutate.Source{Path: p.ImportPath, Files: map[string][]byte{}, Importer: imp}
	for _, name := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return nil, err
		}
		src.Files[name] = text
	}
	files, mutants, err := mutate.Write(src, set, len(m.Mutants)+1)
	m.Mutants = append(m.Mutants, mutants...)
	return files, err
}

// Close removes all that was written.
func (m *Module) Close() error { return os.RemoveAll(m.dir) }

// list runs go list.
func list(ctx context.Context, args []string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,Export,DepOnly,GoFiles,TestImports,XTestImports"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}
