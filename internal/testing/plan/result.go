// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A result is what came of a part: bin/results/PART.json.
type result struct {
	Part     string    `json:"part"`
	Commit   string    `json:"commit"`
	Tree     string    `json:"tree"` // of git, with what is not committed
	Begun    time.Time `json:"begun"`
	Machine  string    `json:"machine"`
	Seconds  float64   `json:"seconds"`
	OK       bool      `json:"ok"`
	Passed   int       `json:"passed"` // tests of packages, without subtests
	Failed   int       `json:"failed"`
	Flaky    int       `json:"flaky"` // failed, then passed: of passed
	Skipped  int       `json:"skipped"`
	Steps    []stepped `json:"steps"`
	Failures []string  `json:"failures,omitempty"`

	FlakyTests []flakyTest         `json:"flaky_tests,omitempty"`
	Skips      map[string][]string `json:"skips,omitempty"` // tests by reason
	Slowest    []slowTest          `json:"slowest,omitempty"`
}

type stepped struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

type slowTest struct {
	Test    string  `json:"test"`
	Seconds float64 `json:"seconds"`
}

// A flakyTest is a line of bin/results/flaky.jsonl.
type flakyTest struct {
	Time   time.Time `json:"time"`
	Commit string    `json:"commit"`
	Part   string    `json:"part"`
	Test   string    `json:"test"`
	Tries  int       `json:"tries"`
	Output string    `json:"output"` // of the first try, which failed
}

// slowest is how many tests the summary lists, and slowSeconds how long one of that list takes at
// least.
const slowest, slowSeconds = 10, 2

// unknown is the commit and the tree of what is not in git, such as an unpacked archive.
const unknown = "unknown"

// newResult begins the result of a part.
func newResult(part string) *result {
	r := &result{Part: part, Commit: unknown, Tree: unknown, Begun: time.Now().Round(time.Second), Machine: machine(), Skips: map[string][]string{}}
	if commit, err := git(nil, "rev-parse", "HEAD"); err == nil {
		r.Commit = commit
	}
	if tree, err := treeNow(); err == nil {
		r.Tree = tree
	}
	return r
}

// git returns the output of git, also in a folder that belongs to another user.
func git(env []string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// treeNow returns the name of the tree as it is, also of what is not committed, so that a result
// belongs to just this code. It changes nothing but the objects of git.
func treeNow() (string, error) {
	dir, err := os.MkdirTemp("", "smcr-plan-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	env := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	if _, err := git(env, "read-tree", "HEAD"); err != nil {
		return "", err
	}
	if _, err := git(env, "add", "-A", "."); err != nil {
		return "", err
	}
	return git(env, "write-tree")
}

// machine says what a result was made on.
func machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name\t: "); ok {
			model, _, _ = strings.Cut(rest, "\n")
		}
	}
	kernel := ""
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = ", Linux " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%s, %d processors%s, %s", model, runtime.NumCPU(), kernel, runtime.Version())
}

// skip records a test or a step that was skipped.
func (r *result) skip(name, reason string) {
	reason = cmp.Or(reason, "no reason given")
	r.Skips[reason] = append(r.Skips[reason], name)
}

// add adds what came of a call of go test.
func (r *result) add(o outcome) {
	names := slices.SortedFunc(maps.Keys(o.tests), func(a, b testName) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range names {
		t := o.tests[name]
		if len(t.results) == 0 {
			continue
		}
		switch t.last() {
		case "pass":
			r.Passed++
		case "fail":
			r.Failed++
			r.Failures = append(r.Failures, name.String())
		case "skip":
			r.Skipped++
		}
		for _, s := range t.skips {
			r.skip(testName{name.pkg, s.name}.String(), s.reason)
		}
		if t.flaky() {
			r.Flaky++
			first := slices.Index(t.results, "fail")
			r.FlakyTests = append(r.FlakyTests, flakyTest{time.Now().Round(time.Second), r.Commit, r.Part, name.String(), len(t.results), t.outputs[first]})
		}
		if t.seconds >= slowSeconds {
			r.Slowest = append(r.Slowest, slowTest{name.String(), t.seconds})
		}
	}
	slices.SortStableFunc(r.Slowest, func(a, b slowTest) int { return cmp.Compare(b.Seconds, a.Seconds) })
	r.Slowest = r.Slowest[:min(len(r.Slowest), slowest)]
}

// print prints the end of a part: the seconds of its steps beside those of the run before, what
// was slow, skipped, flaky and failed. The last line has the counts.
func (r *result) print(out io.Writer, before *result) {
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	p("\n%s: %.0f seconds in %d steps, on %s", r.Part, r.Seconds, len(r.Steps), r.Machine)
	for _, s := range r.Steps {
		grew := ""
		if was, ok := before.step(s.Name); ok && grown(was, s.Seconds) {
			grew = fmt.Sprintf("  GREW from %.0f", was)
		}
		p("%7.0f  %s%s", s.Seconds, s.Name, grew)
	}
	if len(r.Slowest) > 0 {
		p("slowest tests:")
		for _, t := range r.Slowest {
			p("%7.0f  %s", t.Seconds, t.Test)
		}
	}
	if len(r.Skips) > 0 {
		p("skipped, and why:")
		for _, reason := range slices.Sorted(maps.Keys(r.Skips)) {
			names := r.Skips[reason]
			more := ""
			if len(names) > 1 {
				more = fmt.Sprintf(" and %d more", len(names)-1)
			}
			p("%7d  %s (%s%s)", len(names), reason, names[0], more)
		}
	}
	for _, t := range r.FlakyTests {
		p("FLAKY %s: failed, and passed at try %d. What the failed try printed:", t.Test, t.Tries)
		for line := range strings.Lines(t.Output) {
			p("    %s", strings.TrimSuffix(line, "\n"))
		}
	}
	for _, name := range r.Failures {
		p("FAILED: %s", name)
	}
	for _, s := range r.Steps {
		if s.Error != "" {
			p("FAILED STEP: %s: %s", s.Name, s.Error)
		}
	}
	for _, t := range r.FlakyTests {
		p("FLAKY %s", t.Test)
	}
	p("%s: %s: %d passed, %d failed, %d flaky, %d skipped", r.Part, r.verdict(), r.Passed, r.Failed, r.Flaky, r.Skipped)
}

func (r *result) verdict() string {
	if r.OK {
		return "green"
	}
	return "RED"
}

// step returns the seconds of a step. A nil result has no step.
func (r *result) step(name string) (seconds float64, ok bool) {
	if r == nil {
		return 0, false
	}
	for _, s := range r.Steps {
		if s.Name == name && s.Error == "" {
			return s.Seconds, true
		}
	}
	return 0, false
}

// grown reports whether a step takes more than half as long again as before. Seconds are noise.
func grown(was, is float64) bool { return is > was*1.5 && is > was+5 }

// write keeps the result, and adds the flaky tests to the list of all.
func (r *result) write(folder string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, r.Part+".json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	if len(r.FlakyTests) == 0 {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(folder, "flaky.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	for _, t := range r.FlakyTests {
		err = errors.Join(err, enc.Encode(t))
	}
	return errors.Join(err, f.Close())
}

// readResult returns the result of a part, or nil if there is none.
func readResult(folder, part string) (*result, error) {
	b, err := os.ReadFile(filepath.Join(folder, part+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(result)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", part, err)
	}
	return r, nil
}

// printResults prints the table of the results, and whether they are of the tree as it is.
func printResults(out io.Writer, folder string) error {
	tree, err := treeNow()
	if err != nil {
		fmt.Fprintf(out, "whether a result is of this tree is not known: %v\n", err)
	}
	fmt.Fprintf(out, "| part | result | seconds | passed | failed | flaky | skipped | commit | this tree |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range partNames() {
		r, err := readResult(folder, name)
		if err != nil {
			return err
		}
		if r == nil {
			fmt.Fprintf(out, "| %s | not run | | | | | | | |\n", name)
			continue
		}
		fmt.Fprintf(out, "| %s | %s | %.0f | %d | %d | %d | %d | %.8s | %s |\n", name, r.verdict(), r.Seconds, r.Passed, r.Failed, r.Flaky, r.Skipped,
			r.Commit, map[bool]string{true: "yes", false: "no"}[r.Tree == tree])
	}
	return nil
}
