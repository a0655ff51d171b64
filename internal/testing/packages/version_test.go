// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestVersions makes a repository with commits before a release, the release, commits behind it,
// and those before the next one. Each commit has a later version than the one before it, for dpkg
// and for rpm.
func TestVersions(t *testing.T) {
	need(t, "git", "dpkg", "rpm")
	dir := t.TempDir()
	script, err := os.ReadFile(filepath.Join(root, "scripts/package"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	release := func(number string) { write("cmd/smcr/version.go", "const release = \""+number+"\"\n", 0o644) }
	git := func(args ...string) {
		t.Helper()
		output(t, "git", append([]string{"-C", dir, "-c", "user.name=test", "-c", "user.email=test@test.invalid", "-c", "tag.gpgSign=false", "-c", "commit.gpgSign=false"}, args...)...)
	}
	commit := func() {
		t.Helper()
		git("add", "-A")
		git("commit", "-q", "--allow-empty", "-m", "a change")
	}
	var versions []string
	version := func(want string) {
		t.Helper()
		got := strings.TrimSpace(output(t, filepath.Join(dir, "scripts/package"), "version"))
		if !regexp.MustCompile(`^(?:` + want + `)$`).MatchString(got) {
			t.Errorf("version %q, want %q", got, want)
		}
		versions = append(versions, got)
	}

	write("scripts/package", string(script), 0o755)
	release("0.1.0")
	git("init", "-q")
	commit()
	version(`0\.1\.0~1\.g[0-9a-f]{8}`)
	for range 9 {
		commit()
	}
	version(`0\.1\.0~10\.g[0-9a-f]{8}`)
	write("cmd/smcr/version.go", "const release = \"0.1.0\"\n// not committed\n", 0o644)
	version(`0\.1\.0~10\.g[0-9a-f]{8}\.dirty`)
	release("0.1.0")
	commit()
	git("tag", "-a", "-m", "the release", "v0.1.0")
	version(`0\.1\.0`)
	commit()
	version(`0\.1\.0\+12\.g[0-9a-f]{8}`)
	release("0.2.0")
	commit()
	version(`0\.2\.0~13\.g[0-9a-f]{8}`)
	git("tag", "v0.2.0")
	version(`0\.2\.0`)
	if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(output(t, filepath.Join(dir, "scripts/package"), "version")); got != "0.2.0" {
		t.Errorf("without git: %q", got)
	}

	for i := 1; i < len(versions); i++ {
		before, after := versions[i-1], versions[i]
		if out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", before, "lt", after).CombinedOutput(); err != nil {
			t.Errorf("dpkg: %s is not before %s: %v %s", before, after, err, out)
		}
		if got := output(t, "rpm", "--eval", "%{lua:print(rpm.vercmp('"+before+"', '"+after+"'))}"); strings.TrimSpace(got) != "-1" {
			t.Errorf("rpm: %s is not before %s: %s", before, after, got)
		}
	}

	// What is not a version is refused before anything is built.
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "scripts/package"), "version")
	cmd.Env = append(os.Environ(), "PACKAGE_VERSION=v1.0; rm")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "must begin with a digit") {
		t.Errorf("a bad version: %v, %s", err, out)
	}
}
