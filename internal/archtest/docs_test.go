// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const moduleRoot = "../.."

// documents are the texts that TestDocuments checks, relative to the module root.
var documents = []string{"*.md", "docs/*.md", "deploy/*.md", "deploy/*/*.md"}

// A sourceTree is what documents may name: all functions and types, their fields and
// methods, and all files.
type sourceTree struct {
	names map[string]bool // without package: Name, Type.field, Type.Method
	files map[string]bool // paths relative to the module root
}

// readTree reads the files of the module.
func readTree(root string) (sourceTree, error) {
	tree := sourceTree{names: map[string]bool{}, files: map[string]bool{}}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		tree.files[filepath.ToSlash(rel)] = true
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil // the compiler reports it
		}
		for _, decl := range f.Decls {
			addNames(tree.names, decl)
		}
		return nil
	})
	return tree, err
}

// hasFile reports whether a file of the module has this path, or a path that ends in it:
// documents write `engine/spin.go` without the folders above.
func (s sourceTree) hasFile(name string) bool {
	for f := range s.files {
		if f == name || strings.HasSuffix(f, "/"+name) {
			return true
		}
	}
	return false
}

var (
	namedTest = regexp.MustCompile("`(?:[a-z0-9]+\\.)?((?:Test|Fuzz|Benchmark)[A-Z]\\w*)[^`]*`")
	namedPart = regexp.MustCompile("`(?:[a-z0-9]+\\.)?(([A-Z]\\w*)\\.\\w+)(?:\\(\\))?`")
	namedFile = regexp.MustCompile("`([a-z0-9_./-]+\\.go)`")
	mdLink    = regexp.MustCompile(`\]\(([^()\s:]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// anchor returns the fragment of a link to a heading: lower case, hyphens for blanks, no
// punctuation.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// checkDocument returns an error for each test, field, method, file and link in a document
// that does not exist. Fields and methods are checked if the module has their type. name and text are those of the document, read returns the text of another one.
func (s sourceTree) checkDocument(name, text string, read func(string) (string, error)) (errs []string) {
	for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
		if !s.names[m[1]] {
			errs = append(errs, "no test "+m[1])
		}
	}
	for _, m := range namedPart.FindAllStringSubmatch(text, -1) {
		if s.names[m[2]] && !s.names[m[1]] {
			errs = append(errs, "no field or method "+m[1])
		}
	}
	for _, m := range namedFile.FindAllStringSubmatch(text, -1) {
		if !s.hasFile(m[1]) {
			errs = append(errs, "no file "+m[1])
		}
	}
	for _, m := range mdLink.FindAllStringSubmatch(text, -1) {
		target, fragment, _ := strings.Cut(m[1], "#")
		there := text
		if target != "" {
			target = path.Join(path.Dir(name), target)
			info, err := os.Stat(filepath.Join(moduleRoot, target))
			if err != nil {
				errs = append(errs, "no link target "+m[1])
				continue
			}
			if info.IsDir() || !strings.HasSuffix(target, ".md") {
				continue
			}
			if there, err = read(target); err != nil {
				errs = append(errs, err.Error())
				continue
			}
		}
		if fragment != "" && !slices.ContainsFunc(heading.FindAllStringSubmatch(there, -1), func(h []string) bool { return anchor(h[1]) == fragment }) {
			errs = append(errs, "no heading for link "+m[1])
		}
	}
	return errs
}

// TestDocuments checks that the tests, fields, methods, Go files and links in the documents
// exist.
func TestDocuments(t *testing.T) {
	tree, err := readTree(moduleRoot)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) (string, error) {
		b, err := os.ReadFile(filepath.Join(moduleRoot, name))
		return string(b), err
	}
	n := 0
	for _, pattern := range documents {
		names, err := filepath.Glob(filepath.Join(moduleRoot, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			rel, err := filepath.Rel(moduleRoot, name)
			if err != nil {
				t.Fatal(err)
			}
			text, err := read(rel)
			if err != nil {
				t.Fatal(err)
			}
			n++
			for _, e := range tree.checkDocument(filepath.ToSlash(rel), text, read) {
				t.Errorf("%s: %s", rel, e)
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d documents", n)
	}
}

// TestCheckDocument checks that TestDocuments finds errors.
func TestCheckDocument(t *testing.T) {
	tree := sourceTree{names: map[string]bool{"TestThere": true, "Type": true, "Type.there": true}, files: map[string]bool{"a/b/c.go": true}}
	text := "# One *thing*\n`TestThere`, `a.Type.there`, `Type.there()`, `Other.gone`, `e2e.TestThere/part`, `b/c.go`, `c.go`, [x](#one-thing)\n" +
		"`TestGone`, `a.Type.gone`, `d/c.go`, [x](#two), [x](no.md), [x](https://example.com/)"
	got := tree.checkDocument("docs/x.md", text, nil)
	want := []string{"no test TestGone", "no field or method Type.gone", "no file d/c.go", "no heading for link #two", "no link target no.md"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
