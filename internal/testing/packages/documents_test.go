// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notShipped are targets of links in documents that only the source has.
var notShipped = map[string]bool{"LICENSE": true, "smc": true, "man/smcr-trace.8": true, "examples/echo/main.go": true}

var linkRE = regexp.MustCompile(`\]\(([^)#:\s]+)[^):\s]*\)`)

// TestDocuments: both packages have the documents, with all that these show and lead to, and the
// files for Prometheus and Grafana.
func TestDocuments(t *testing.T) {
	need(t, "make", "git", "dpkg-deb", "rpm", "rpm2cpio", "cpio")
	for format, unpack := range map[string]string{
		"deb": `dpkg-deb -x "$0" "$1"`,
		// The names in an RPM begin with a slash.
		"rpm": `rpm2cpio "$0" | (cd "$1" && cpio -id --quiet --no-absolute-filenames)`,
	} {
		dir := t.TempDir()
		output(t, "sh", "-c", unpack, pack(t, format, older), dir)
		docs := filepath.Join(dir, "usr/share/doc/smcr")
		want := map[string]string{}
		for _, name := range []string{"README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "deploy/README.md"} {
			want[filepath.Join(docs, name)] = name
		}
		for _, name := range append(below(t, "docs"), below(t, "deploy/kubernetes")...) {
			want[filepath.Join(docs, name)] = name
		}
		prometheus := below(t, "deploy/prometheus")
		for _, name := range prometheus {
			want[filepath.Join(dir, "usr/share/smcr/prometheus", filepath.Base(name))] = name
		}
		if len(prometheus) < 3 || len(want) < 40 {
			t.Errorf("the source has only %d files for Prometheus, and %d in all", len(prometheus), len(want))
		}
		for file, name := range want {
			got, err := os.ReadFile(file)
			if err != nil {
				t.Errorf("%s: %s is missing: %v", format, name, err)
				continue
			}
			source, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, source) {
				t.Errorf("%s: %s is not that of the source", format, name)
			}
			if strings.HasSuffix(name, ".md") {
				wantLinks(t, format, docs, name, string(source))
			}
		}
	}
}

// below returns the files below a folder of the source, as paths from its root.
func below(t *testing.T, folder string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, folder), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, file)
		names = append(names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// wantLinks checks that the links of a document lead to what is in the package.
func wantLinks(t *testing.T, format, docs, name, text string) {
	t.Helper()
	for _, m := range linkRE.FindAllStringSubmatch(text, -1) {
		target := path.Join(path.Dir(name), m[1])
		if _, err := os.Stat(filepath.Join(docs, target)); err != nil && !notShipped[target] {
			t.Errorf("%s: %s has a link to %s, which the package does not have", format, name, m[1])
		}
	}
}
