// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

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
	"fmt"
	"os"
	"testing"
	"time"
)

var _, _ = fmt.Sprint, time.Now

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
			var out bytes.Buffer
			err := plantedPart(t, tt.file, tt.add, !tt.noRetry)(t.Context(), &out)
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

// plantedPart plants a module with more code in one of its packages, leaves it as the folder of
// the test, and returns what runs its tests as a part.
func plantedPart(t *testing.T, file, add string, retry bool) (run func(ctx context.Context, out io.Writer) error) {
	t.Helper()
	tools, err := filepath.Abs(filepath.Join(root, "tools/go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	r := newResult("x") // of this repository: the module has none
	o := options{goTool: "go", tools: tools, results: t.TempDir()}
	plant(t, file, add)
	return func(ctx context.Context, out io.Writer) error {
		return o.steps(ctx, out, part{"x", []step{o.goTest("tests", goTest{
			packages: func(string) bool { return true }, args: []string{"-count=1"}, retry: retry,
		})}}, r)
	}
}

// plant makes the planted module and goes there.
func plant(t *testing.T, file, add string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range planted {
		if strings.HasPrefix(name, file+"/") {
			text += add
		}
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// TestInterrupted: a plan that is interrupted ends, and leaves no test that runs.
func TestInterrupted(t *testing.T) {
	testkind.System(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	run := plantedPart(t, "system", fmt.Sprintf(`
func TestHang(t *testing.T) {
	if err := os.WriteFile(%q, fmt.Append(nil, os.Getpid()), 0o644); err != nil {
		t.Fatal(err)
	}
	for {
		time.Sleep(time.Hour)
	}
}
`, pidFile), true)
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &out) }()
	pid := 0
	testkind.Eventually(t, "the test runs", func() (any, bool) {
		b, err := os.ReadFile(pidFile)
		pid, _ = strconv.Atoi(string(b))
		return err, pid != 0
	})
	cancel()
	if err := <-ended; err == nil || !strings.Contains(out.String(), "x: RED") {
		t.Errorf("%v\n%s", err, &out)
	}
	testkind.Eventually(t, "the test has ended", func() (any, bool) {
		err := syscall.Kill(pid, 0)
		return err, errors.Is(err, syscall.ESRCH)
	})
}

// TestRepeat repeats tests that pass, fail, and are skipped.
func TestRepeat(t *testing.T) {
	testkind.System(t)
	out := t.TempDir()
	plant(t, "system", `
func TestRepeatNever(t *testing.T) { t.Skip("a reason") }

func TestRepeatOnce(t *testing.T) { failsOnce(t) }

func TestRepeatAlways(t *testing.T) { t.Error("as always") }
`)
	var stdout, stderr bytes.Buffer
	status := command(t.Context(), []string{"repeat", "-pkg", "./system", "-run", "Repeat|Fine", "-count", "3", "-load", "1", "-out", out}, &stdout, &stderr)
	if status != 1 || stderr.Len() > 0 {
		t.Errorf("exit status %d: %s", status, &stderr)
	}
	for _, want := range []string{
		"3 times 4 tests of ./system beside 1 busy loops", "0 of 3 failed", "TestFine\n", "1 of 3 failed", "TestRepeatOnce\n", "3 of 3 failed", "TestRepeatAlways\n",
		"TestRepeatNever  skipped\n",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, &stdout)
		}
	}
	if b, err := os.ReadFile(filepath.Join(out, "TestRepeatAlways-2.log")); err != nil || !strings.Contains(string(b), "as always") {
		t.Errorf("what the failed test printed: %q, %v", b, err)
	}
	stderr.Reset()
	if status := command(t.Context(), []string{"repeat", "-pkg", "./system", "-run", "TestOther"}, &stdout, &stderr); status != 1 || !strings.Contains(stderr.String(), `no test of ./system matches "TestOther"`) {
		t.Errorf("a name without a test: exit status %d: %s", status, &stderr)
	}
}
