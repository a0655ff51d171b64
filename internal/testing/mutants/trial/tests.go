// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/mutants/active"
)

// Tests are the compiled tests of a package.
type Tests struct {
	Package string
	Names   []string // top-level tests, fuzz targets and examples
	m       *Module
	binary  string
	folder  string
	args    []string
}

// Compile compiles the tests of a package against the mutants.
func (m *Module) Compile(ctx context.Context, pattern string) (*Tests, error) {
	pkgs, err := list(ctx, []string{pattern})
	if err != nil {
		return nil, err
	}
	if len(pkgs) != 1 {
		return nil, fmt.Errorf("%s is not one package", pattern)
	}
	p := pkgs[0]
	t := &Tests{Package: p.ImportPath, m: m, folder: p.Dir, binary: filepath.Join(m.dir, strings.ReplaceAll(p.ImportPath, "/", "-")+".test")}
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", m.overlay, "-o", t.binary, p.ImportPath).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("compile %s with its mutants: %w\n%s", p.ImportPath, err, out)
	}
	if _, err := os.Stat(t.binary); err != nil {
		return t, nil // no tests
	}
	t.args = []string{"-test.short", "-test.failfast"}
	if slices.Contains(slices.Concat(p.TestImports, p.XTestImports), "pgregory.net/rapid") {
		// Nobody looks at the smallest example of a failure, nor at a file of it.
		t.args = append(t.args, "-rapid.nofailfile", "-rapid.shrinktime=0s")
	}
	r, err := t.run(ctx, []string{"-test.list", "."}, nil, time.Minute, 60)
	if err != nil || r.Verdict != Passed {
		return nil, fmt.Errorf("list the tests of %s: %w\n%s", p.ImportPath, err, r.Output)
	}
	for name := range strings.Lines(r.Output) {
		if name = strings.TrimSpace(name); !strings.HasPrefix(name, "Benchmark") && name != "" {
			t.Names = append(t.Names, name)
		}
	}
	return t, nil
}

// A Verdict is how a run of tests ended.
type Verdict int

const (
	Passed   Verdict = iota // all tests passed, or were skipped
	Failed                  // a test failed, or the process died
	TimedOut                // the tests took far longer than without a mutant
)

// A Result is a run of tests.
type Result struct {
	Verdict Verdict
	Output  string        // what the tests printed, its beginning if it is long
	CPU     time.Duration // processor time
	Wall    time.Duration
	Skipped bool // it was one test, and it skipped itself
}

// memory is how much a test process may write to, in bytes. A mutant may ask for memory
// for ever.
const memory = 3 << 30

// Run runs some tests with a mutant, 0 for none. A run may take limit of processor time,
// and twenty times as long if it waits: other work of the machine does not decide.
func (t *Tests) Run(ctx context.Context, mutant int, limit time.Duration, names ...string) (Result, error) {
	env := []string{active.Env + "=" + strconv.Itoa(mutant)}
	seconds := int(limit/time.Second) + 1
	return t.run(ctx, t.selected(names), env, 20*time.Duration(seconds)*time.Second, seconds)
}

// Reached runs one test without a mutant and returns which mutants it comes to, by ID.
func (t *Tests) Reached(ctx context.Context, limit time.Duration, name string) (Result, []bool, error) {
	f, err := os.CreateTemp(t.m.dir, "reached-")
	if err != nil {
		return Result{}, nil, err
	}
	defer os.Remove(f.Name()) // also if the test fails
	err = errors.Join(f.Truncate(int64(len(t.m.Mutants)+1)), f.Chmod(0o666), f.Close())
	if err != nil {
		return Result{}, nil, err
	}
	seconds := int(limit/time.Second) + 1
	r, err := t.run(ctx, append(t.selected([]string{name}), "-test.v"), []string{active.ReachedEnv + "=" + f.Name()}, 20*limit, seconds)
	if err != nil {
		return r, nil, err
	}
	r.Skipped = strings.Contains(r.Output, "--- SKIP: "+strings.ReplaceAll(name, " ", "_")+" ")
	b, err := os.ReadFile(f.Name())
	reached := make([]bool, len(b))
	for i := range b {
		reached[i] = b[i] != 0
	}
	return r, reached, err
}

// selected returns the arguments that run the tests with these names. A name may have a
// subtest behind a slash; it runs the subtests whose names contain that text.
func (t *Tests) selected(names []string) []string {
	var tops []string
	part := ""
	for _, n := range names {
		top, sub, _ := strings.Cut(n, "/")
		tops = append(tops, regexp.QuoteMeta(top))
		if sub != "" {
			part = "/" + regexp.QuoteMeta(strings.ReplaceAll(sub, " ", "_"))
		}
	}
	if len(names) != 1 {
		part = ""
	}
	return append(slices.Clone(t.args), "-test.run", "^("+strings.Join(tops, "|")+")$"+part)
}

// run runs the test binary with limits.
func (t *Tests) run(ctx context.Context, args, env []string, wall time.Duration, cpuSeconds int) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, wall)
	defer cancel()
	tmp, err := os.MkdirTemp(t.m.dir, "tmp-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(tmp) // what a mutant left
	if err := os.Chmod(tmp, 0o777); err != nil {
		return Result{}, err
	}
	var out head
	// The process gets its limits before it is the test: without CAP_SYS_RESOURCE, not even
	// root can set those of another user's process.
	limits := []string{fmt.Sprintf("--cpu=%d:%d", cpuSeconds, cpuSeconds+1), fmt.Sprintf("--data=%d", memory), "--", t.binary}
	cmd := exec.Command("prlimit", slices.Concat(limits, args, []string{"-test.timeout=0"})...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.folder, &out, &out
	cmd.Env = append(env, "TMPDIR="+tmp, "HOME="+tmp, "PATH="+os.Getenv("PATH"), "GOMAXPROCS=1", "GOTRACEBACK=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 && !t.m.root {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		// Not by its path: the user may not pass the directories above the module, such as /root.
		folder, err := os.OpenFile(t.folder, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return Result{}, err
		}
		defer folder.Close()
		cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", folder.Fd())
	}
	cmd.WaitDelay = time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return Result{}, fmt.Errorf("run the tests of %s: %w", t.Package, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	err = cmd.Wait()
	late := !stop()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what it has started and left
	r := Result{Output: out.String(), Wall: time.Since(start), CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	exit, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
	case late && errors.Is(ctx.Err(), context.Canceled):
		return r, ctx.Err()
	case late, r.CPU >= time.Duration(cpuSeconds)*time.Second-100*time.Millisecond:
		r.Verdict = TimedOut
	case isExit && exit.ExitCode() != 0 || errors.Is(err, exec.ErrWaitDelay):
		r.Verdict = Failed
	default:
		return r, fmt.Errorf("run the tests of %s: %w", t.Package, err)
	}
	return r, nil
}

// nobody is the user without rights.
const nobody = 65534

// head keeps the beginning of what a test prints.
type head struct{ bytes.Buffer }

// maxOutput is how much of the output of a test is kept, in bytes.
const maxOutput = 256 << 10

// Write keeps b if there is room.
func (t *head) Write(b []byte) (int, error) {
	if room := maxOutput - t.Len(); room > 0 {
		t.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}
