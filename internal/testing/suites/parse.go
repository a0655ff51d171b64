// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// A Status is what became of a test.
type Status string

const (
	// OK is a test that passed, or failed where it has to.
	OK Status = "ok"
	// Failed is a test that failed or did not end.
	Failed Status = "failed"
	// Skipped is a test that its suite left out.
	Skipped Status = "skipped"
	// Missing is a test that another run has and this one has not: it was not reached.
	Missing Status = "missing"
)

// Tests has the status of each test of a job, by its name. A test that was run several times
// has failed if one run has failed.
type Tests map[string]Status

func (t Tests) set(name string, s Status) {
	if old, ok := t[name]; !ok || s == Failed || old == Skipped {
		t[name] = s
	}
}

// A parser reads the results of a job from its output, and from the file $RESULTS that it may
// have written.
type parser func(output, results string) (Tests, error)

// junit reads the file of regrtest's --junit-xml.
func junit(_, results string) (Tests, error) {
	b, err := os.ReadFile(results)
	if err != nil {
		return nil, fmt.Errorf("the job wrote no results: %w", err)
	}
	var file struct {
		Suites []struct {
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Result  string    `xml:"result,attr"`
				Status  string    `xml:"status,attr"`
				Error   *struct{} `xml:"error"`
				Failure *struct{} `xml:"failure"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("results of the job: %w", err)
	}
	t := Tests{}
	for _, s := range file.Suites {
		for _, c := range s.Cases {
			switch {
			case c.Error != nil || c.Failure != nil:
				t.set(c.Name, Failed)
			case c.Skipped != nil || c.Result == "suppressed" || c.Status == "notrun":
				t.set(c.Name, Skipped)
			default:
				t.set(c.Name, OK)
			}
		}
	}
	return t, nil
}

// unittestRE matches a line of a verbose unittest: the name is in the parentheses.
var unittestRE = regexp.MustCompile(`(?m)^\w+ \(([\w.]+)\)(?:.*?)(?:\n(?:[^\n]*?))?? \.\.\. (ok|FAIL|ERROR|skipped|expected failure|unexpected success)`)

// unittest reads the output of a verbose unittest, for a job that did not come to its end.
func unittest(output, _ string) (Tests, error) { return lines(unittestRE, output), nil }

// lines returns the tests that an expression finds, by name and outcome, in the words of unittest or trial.
func lines(re *regexp.Regexp, output string) Tests {
	t := Tests{}
	for _, m := range re.FindAllStringSubmatch(output, -1) {
		switch m[2] {
		case "ok", "expected failure", "OK", "TODO": // trial's TODO is a failure that is expected
			t.set(m[1], OK)
		case "skipped", "SKIPPED":
			t.set(m[1], Skipped)
		default:
			t.set(m[1], Failed)
		}
	}
	return t
}

// python is junit, or unittest for a job that was ended before it wrote its file.
func python(output, results string) (Tests, error) {
	if t, err := junit(output, results); err == nil {
		return t, nil
	}
	return unittest(output, results)
}

var trialRE = regexp.MustCompile(`([A-Za-z_]\w*(?:\.\w+)+) \.\.\. \[(OK|SKIPPED|TODO|FAIL|FAILURE|ERROR|SUCCESS!\?!)\]`)

// trial reads the output of Twisted's trial --reporter=bwverbose. A test that left something behind has ended twice.
func trial(output, _ string) (Tests, error) { return lines(trialRE, output), nil }

// golang reads the output of a test binary with -test.v=test2json as `go tool test2json`
// writes it.
func golang(output, _ string) (Tests, error) {
	t := Tests{}
	for line := range strings.Lines(output) {
		var e struct{ Action, Test string }
		if json.Unmarshal([]byte(line), &e) != nil || e.Test == "" {
			continue
		}
		switch e.Action {
		case "run":
			// A test that never ends has failed.
			if _, ok := t[e.Test]; !ok {
				t[e.Test] = Missing
			}
		case "pass":
			t[e.Test] = OK
		case "fail":
			t[e.Test] = Failed
		case "skip":
			t[e.Test] = Skipped
		}
	}
	for name, s := range t {
		if s == Missing {
			t[name] = Failed
		}
	}
	return t, nil
}

var tapRE = regexp.MustCompile(`^(not )?ok\s+(\d+)?(?:\s+-)?\s*(.*)$`)

// numbersRE matches what differs between two runs of the same test in its name.
var numbersRE = regexp.MustCompile(`\b\d+(\.\d+)?(e-?\d+)?\b`)

// tap reads the Test Anything Protocol. Names may have numbers that differ from run to run, so
// the numbers of the tests are a part of their names here, and others are not.
func tap(output, _ string) (Tests, error) {
	return tapNamed(output, func(number, name string) string {
		return strings.TrimSpace(number + " " + numbersRE.ReplaceAllString(name, "N"))
	}), nil
}

// tapNames is tap for a suite in which each test has a name of its own.
func tapNames(output, _ string) (Tests, error) {
	return tapNamed(output, func(_, name string) string { return numbersRE.ReplaceAllString(name, "N") }), nil
}

// tapFiles is tapNames for tests that are files: all of a name counts.
func tapFiles(output, _ string) (Tests, error) {
	return tapNamed(output, func(_, name string) string { return name }), nil
}

// tapNamed reads the Test Anything Protocol, and names each test by its number and what stands behind it.
func tapNamed(output string, named func(number, name string) string) Tests {
	t := Tests{}
	for line := range strings.Lines(output) {
		m := tapRE.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		name, comment, _ := strings.Cut(" "+m[3], " # ")
		name = named(m[2], strings.TrimSpace(name))
		switch {
		case strings.HasPrefix(strings.ToUpper(comment), "SKIP"):
			t.set(name, Skipped)
		case m[1] != "" && !strings.HasPrefix(strings.ToUpper(comment), "TODO"):
			t.set(name, Failed)
		default:
			t.set(name, OK)
		}
	}
	return t
}

var (
	colorRE = regexp.MustCompile("\x1b\\[[0-9;]*m")
	redisRE = regexp.MustCompile(`^\[(ok|err|exception|skip|ignore)\]: (.*?)(?: \(\d+ ms\))?(?: in tests/\S+)?(?:\..*)?$`)
)

// redis reads the output of Redis' runtest.
func redis(output, _ string) (Tests, error) {
	t := Tests{}
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(colorRE.ReplaceAllString(line, ""))
		if m := redisRE.FindStringSubmatch(line); m != nil {
			name := numbersRE.ReplaceAllString(m[2], "N")
			switch m[1] {
			case "ok":
				t.set(name, OK)
			case "skip", "ignore":
				t.set(name, Skipped)
			default:
				t.set(name, Failed)
			}
		}
	}
	return t, nil
}

var tinytestRE = regexp.MustCompile(`(?m)^([a-z]\w*/\w+): `)

// tinytest reads the output of libevent's tests: what stands between the names of two tests is about the first
// of them.
func tinytest(output, _ string) (Tests, error) {
	t := Tests{}
	starts := tinytestRE.FindAllStringSubmatchIndex(output, -1)
	for i, at := range starts {
		end := len(output)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		switch name, body := output[at[2]:at[3]], output[at[1]:end]; {
		case strings.Contains(body, "FAILED]"):
			t.set(name, Failed)
		case strings.Contains(body, "OK\n"):
			t.set(name, OK)
		case strings.Contains(body, "SKIPPED\n"), strings.Contains(body, "DISABLED\n"):
			t.set(name, Skipped)
		default:
			t.set(name, Failed) // it was killed
		}
	}
	return t, nil
}

var (
	curlRE   = regexp.MustCompile(`(?m)^test (\d+)(?:\.\.\.\[| SKIPPED)`)
	curlOKRE = regexp.MustCompile(`OK \(\d+ +out of`)
)

// curl reads the output of curl's runtests.pl: what stands between the first lines of two
// tests is about the first of them.
func curl(output, _ string) (Tests, error) {
	t := Tests{}
	starts := curlRE.FindAllStringSubmatchIndex(output, -1)
	for i, at := range starts {
		end := len(output)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		name, body := output[at[2]:at[3]], output[at[0]:end]
		switch {
		case curlOKRE.MatchString(body):
			t.set(name, OK)
		case strings.HasPrefix(body, "test "+name+" SKIPPED"):
			t.set(name, Skipped)
		default:
			t.set(name, Failed)
		}
	}
	return t, nil
}
