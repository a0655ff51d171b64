// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const keptHeading = "## What others can make the stack keep"

var (
	keptFile     = regexp.MustCompile("`([a-z/_0-9]+\\.go)`")
	keptConst    = regexp.MustCompile("`([A-Za-z]+) = ([^`]+)`")
	keptTestList = regexp.MustCompile("((?:`Test[A-Za-z]+`(?:, | and )?)+) in `([a-z/0-9]+)`")
	keptTestName = regexp.MustCompile("Test[A-Za-z]+")
	// shareInRow is a bound of one user, as a constant or a flag.
	shareInRow = regexp.MustCompile("`(?:[a-z][A-Za-z]*User|maxUser|keepUser|locksUser|maxSource|userShifts|userQuiet|userPlain) = |`--user-(?:fds|memory|connections)`")
	// userShare are names of constants that are a share of a user.
	userShare = regexp.MustCompile(`(?m)^\s*((?:max|keep|locks)[A-Za-z]*User)\s+=`)
)

// TestKept walks the table of docs/security.md that says what others can make the stack keep: each
// bound is in the source as it says, each test exists, and each share of a user has a row.
func TestKept(t *testing.T) {
	section := securitySection(t, keptHeading, tablesHeading)
	rows, named := 0, map[string]bool{}
	shares := 0 // rows with a share of a user
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(cells[1], "---") || strings.Contains(cells[1], "what is kept") {
			continue
		}
		rows++
		what, bound := strings.TrimSpace(cells[1]), cells[2]
		// The constants after a file are those of this file.
		files := keptFile.FindAllStringSubmatchIndex(bound, -1)
		for i, f := range files {
			end := len(bound)
			if i+1 < len(files) {
				end = files[i+1][0]
			}
			file := bound[f[2]:f[3]]
			source, err := os.ReadFile(filepath.Join(moduleRoot, file))
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			consts := keptConst.FindAllStringSubmatch(bound[f[1]:end], -1)
			if len(consts) == 0 {
				t.Errorf("%s: no bound of %s", what, file)
			}
			for _, c := range consts {
				named[c[1]] = true
				is := regexp.MustCompile(`(?m)^\s*(?:const )?` + c[1] + `\s+= ` + regexp.QuoteMeta(c[2]) + `(?:\s|$)`)
				if !is.Match(source) {
					t.Errorf("%s: %s does not say %s = %s", what, file, c[1], c[2])
				}
			}
		}
		if len(files) == 0 && !strings.Contains(bound, "`--") {
			t.Errorf("%s: neither a constant nor a flag bounds it", what)
		}
		tests := keptTests(cells[3])
		for _, test := range tests {
			if !hasTest(t, test[0], test[1]) {
				t.Errorf("%s: no such test: %s", what, strings.TrimSpace(cells[3]))
			}
		}
		if len(tests) == 0 {
			t.Errorf("%s: no test", what)
		}
		if shareInRow.MatchString(bound) {
			shares++
			if !slices.ContainsFunc(tests, func(test [2]string) bool { return ofUsers(t, test[0], test[1]) }) {
				t.Errorf("%s: no test in which users take all that they can: see internal/testing/sharetest", what)
			}
		}
	}
	if rows < 18 || shares < 4 {
		t.Errorf("only %d rows, %d with a share", rows, shares)
	}
	for _, dir := range []string{"userstack", "userstack/service", "userstack/tcpopt", "userstack/internal/bounded", "userstack/internal/tcptable", "userstack/driver", "userstack/relay", "nl"} {
		for name, source := range goFiles(t, dir) {
			for _, m := range userShare.FindAllStringSubmatch(source, -1) {
				if !named[m[1]] {
					t.Errorf("%s: %s is a share of a user and has no row in docs/security.md", name, m[1])
				}
			}
		}
	}
}

// securitySection returns what docs/security.md says from a heading to the next line that begins with to.
func securitySection(t *testing.T, from, to string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleRoot, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), "\n"+from+"\n")
	if !ok {
		t.Fatalf("no section %q", from)
	}
	section, _, ok = strings.Cut(section, "\n"+to)
	if !ok {
		t.Fatalf("no section %q after %q", to, from)
	}
	return section
}

// withoutFair are tests of tables in which the user with the most gives something back to the next, or each user has
// places that nobody else takes, instead of what quota.Fair says.
var withoutFair = []string{"TestDeclineUsers", "TestCopies", "TestListenersOfUsers", "TestQuietOfUsers", "TestPlainsOfUsers"}

// ofUsers reports whether a test has users take all that they can.
func ofUsers(t *testing.T, dir, test string) bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(moduleRoot, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil {
			if _, body, ok := strings.Cut(string(b), "\nfunc "+test+"("); ok {
				body, _, _ = strings.Cut(body, "\n}\n")
				return strings.Contains(body, "sharetest.Users(") || slices.Contains(withoutFair, test)
			}
		}
	}
	return false
}

// keptTests returns package and name of the tests of a row: "`TestA`, `TestB` in `package`".
func keptTests(cell string) (tests [][2]string) {
	for _, m := range keptTestList.FindAllStringSubmatch(cell, -1) {
		for _, name := range keptTestName.FindAllString(m[1], -1) {
			tests = append(tests, [2]string{m[2], name})
		}
	}
	return tests
}

// goFiles returns the files of a package that are not tests, by name.
func goFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(moduleRoot, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	return files
}

// hasTest reports whether a package has a test.
func hasTest(t *testing.T, dir, test string) bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(moduleRoot, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
