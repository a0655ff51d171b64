// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// A planted module has tests of which one fails.
var planted = map[string]string{
	"go.mod": "module smcr\n\ngo 1.26.0\n",
	"pure/pure_test.go": `package pure

import "testing"

func TestFine(t *testing.T) {}
`,
	"system/system_test.go": `package system

import (
	"errors"
	"os"
	"testing"
)

func TestFine(t *testing.T) {}

// failsOnce fails if no file says that it has failed before.
func failsOnce(t *testing.T) {
	name := "failed-" + t.Name()
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Error("unlucky")
	}
}
`,
}

// TestPlanted runs real tests that fail as a gate does: what may be tried again is, and nothing
// else is forgiven.
func TestPlanted(t *testing.T) {
	testkind.System(t)
	if testing.Short() {
		t.Skip("builds and runs seven modules")
	}
	tools, err := filepath.Abs(filepath.Join(root, "tools/go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	const system = "\tt.Attr(\"kind\", \"system\")\n"
	once := func(names ...string) (text string) {
		for _, name := range names {
			text += "func " + name + "(t *testing.T) {\n" + system + "\tfailsOnce(t)\n}\n\n"
		}
		return text
	}
	for _, tt := range []struct {
		name, file, add string
		noRetry         bool
		green           bool
		want            []string
	}{
		{"nothing", "system", "", false, true, []string{"x: green: 2 passed, 0 failed, 0 flaky, 0 skipped\n"}},
		{"a pure test", "pure", "func TestBroken(t *testing.T) { t.Error(1) }\n", false, false, []string{"FAILED: pure TestBroken\n", "x: RED: 2 passed, 1 failed, 0 flaky, 0 skipped\n"}},
		{"a pure test, once", "system", "func TestBroken(t *testing.T) { failsOnce(t) }\n", false, false, []string{"failed at the first try, and is no system test: system TestBroken", "x: RED: "}},
		{"a system test, always", "system", "func TestBroken(t *testing.T) {\n" + system + "\tt.Error(1)\n}\n", false, false, []string{"FAILED: system TestBroken\n", "x: RED: 2 passed, 1 failed, 0 flaky, 0 skipped\n"}},
		{"a system test, once", "system", once("TestBroken"), false, true, []string{"\nFLAKY system TestBroken\n", "unlucky", "x: green: 3 passed, 0 failed, 1 flaky, 0 skipped\n"}},
		{"a system test, once, in a part", "system", once("TestBroken"), true, false, []string{"FAILED: system TestBroken\n", "x: RED: 2 passed, 1 failed, 0 flaky"}},
		{"six system tests, once", "system", once("TestA", "TestB", "TestC", "TestD", "TestE", "TestF"), false, false, []string{"x: RED: 2 passed, 6 failed, 0 flaky"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range planted {
				if strings.HasPrefix(name, tt.file+"/") {
					text += tt.add
				}
				name = filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			results := t.TempDir()
			o := options{goTool: "go", tools: tools, results: results}
			repository, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			p := part{"x", time.Minute, []step{o.goTest("tests", goTest{
				packages: func(string) bool { return true }, args: []string{"-count=1"}, retry: !tt.noRetry,
			})}}
			var out bytes.Buffer
			r, err := newResult("x") // of this repository: the module has none
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(dir)
			err = o.steps(t.Context(), &out, p, r)
			t.Chdir(repository)
			if (err == nil) != tt.green {
				t.Errorf("green: %t, want %t: %v", err == nil, tt.green, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in the output", want)
				}
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}
