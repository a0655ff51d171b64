// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const credentialsHeading = "## Who says who a peer is"

var (
	// asksKernel is code that asks the kernel who is at the other end of a unix socket.
	asksKernel = regexp.MustCompile(`unix\.SO_PEERCRED|unix\.SO_PEERGROUPS|unix\.SO_PEERPIDFD|soPeerPidfd\)`)
	// believesPeer is code with which a process believes, or makes, what a message says of its sender.
	believesPeer = regexp.MustCompile(`SCM_CREDENTIALS\b[^)]*[,(]|ParseUnixCredentials|UnixCredentials\(|SetsockoptInt\([^)]*SO_PASS(CRED|PIDFD|SEC)`)
	codeComment  = regexp.MustCompile(`(?m)//.*$`)
)

// TestCredentials: each file that asks the kernel who a peer is has a row in docs/security.md with
// a test that shows that it cannot be forged, and so has each that believes those of a message.
func TestCredentials(t *testing.T) {
	section := securitySection(t, credentialsHeading, "## ")
	rows := map[string]bool{}
	for _, m := range keptFile.FindAllStringSubmatch(section, -1) {
		rows[m[1]] = false
	}
	for _, m := range keptTests(section) {
		if !hasTest(t, m[0], m[1]) {
			t.Errorf("no test %s in %s", m[1], m[0])
		}
	}
	err := filepath.WalkDir(moduleRoot, func(path string, d fs.DirEntry, err error) error {
		name, rerr := filepath.Rel(moduleRoot, path)
		switch {
		case err != nil || rerr != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || name == filepath.Join("internal", "testing")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		code := codeComment.ReplaceAllString(string(source), "")
		if m := believesPeer.FindString(code); m != "" {
			if _, ok := rows[name]; !ok {
				t.Errorf("%s has %s: a peer says that, and docs/security.md has no row", name, m)
			}
			rows[name] = true
		}
		if asksKernel.MatchString(code) {
			if _, ok := rows[name]; !ok {
				t.Errorf("%s asks who a peer is, and has no row in docs/security.md", name)
			}
			rows[name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, seen := range rows {
		if !seen {
			t.Errorf("%s has a row in docs/security.md and does not ask who a peer is", name)
		}
	}
	if len(rows) < 6 {
		t.Errorf("only %v", rows)
	}
}
