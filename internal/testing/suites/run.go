// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"smcr/internal/testing/netnstest"
)

//go:embed testdata/*.sh
var scripts embed.FS

// A Runner runs jobs. It is used by one goroutine.
type Runner struct {
	smcr, cache, logs, dir string
	flags                  string // help of smcr run
	slow                   int    // how many times longer jobs may take
	goRoot                 string
	sources                map[string]string
}

// NewRunner returns a Runner for a program smcr, which writes the output of each job to a file
// of the folder logs. Jobs may take slow times as long as their limits say. The caller closes
// the Runner.
func NewRunner(smcr, logs string, slow int) (*Runner, error) {
	r := &Runner{slow: slow, sources: map[string]string{}}
	var err error
	if r.smcr, err = filepath.Abs(smcr); err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	if r.logs, err = filepath.Abs(logs); err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	if r.cache, err = CacheDir(); err != nil {
		return nil, err
	}
	help, err := exec.Command(r.smcr, "run", "--help").Output()
	if err != nil {
		return nil, fmt.Errorf("suites: %s run --help: %w", smcr, err)
	}
	r.flags = string(help)
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("suites: go env GOROOT: %w", err)
	}
	r.goRoot = strings.TrimSpace(string(root))
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	if r.dir, err = os.MkdirTemp("", "smcr-suites-"); err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	// Some jobs run as another user.
	if err := errors.Join(os.Chmod(r.dir, 0o755), os.CopyFS(r.dir, scripts)); err != nil {
		return nil, errors.Join(fmt.Errorf("suites: %w", err), r.Close())
	}
	return r, nil
}

// Close removes the temporary files of the Runner.
func (r *Runner) Close() error { return os.RemoveAll(r.dir) }

// Prepare gets and builds a suite, and returns the version of what it tests. The error is a
// [MissingError] if packages are missing.
func (r *Runner) Prepare(ctx context.Context, s *Suite) (version string, err error) {
	source, err := s.prepare(ctx, r.cache)
	if err != nil {
		return "", fmt.Errorf("suites: %s: %w", s.Name, err)
	}
	r.sources[s.Name] = source
	cmd := exec.CommandContext(ctx, "sh", "-c", s.Version)
	cmd.Dir = source
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("suites: version of %s: %w", s.Name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// An Outcome is what came of a job.
type Outcome struct {
	Tests Tests
	// Ended says how the job ended, "" for the exit status 0.
	Ended string
	Took  time.Duration
	// Over is the summary of smcr run, without its first word.
	Over string
	// Log is the file with the output.
	Log string
}

var summaryRE = regexp.MustCompile(`(?m)^smcr: (\d+ connections? over SMC-R, .*)$`)

// ownTime is how long before its limit a job ends itself.
const ownTime = 20 * time.Second

// Run runs a job of a prepared suite in a mode, or only some tests of it.
func (r *Runner) Run(ctx context.Context, s *Suite, j *Job, m Mode, only []string) (*Outcome, error) {
	pair, err := netnstest.Create(netnstest.Options{})
	if err != nil {
		return nil, err
	}
	out, err := r.run(ctx, pair, s, j, m, only)
	return out, errors.Join(err, pair.Close())
}

func (r *Runner) run(ctx context.Context, pair *netnstest.Pair, s *Suite, j *Job, m Mode, only []string) (*Outcome, error) {
	work, err := os.MkdirTemp(r.dir, "work-")
	if err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o777); err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	name := strings.NewReplacer("/", "_", " ", "_").Replace(s.Name + "-" + j.Name + "-" + m.Name)
	if only != nil {
		name += "-again"
	}
	o := &Outcome{Log: filepath.Join(r.logs, name+".log")}
	log, err := os.Create(o.Log)
	if err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	defer log.Close()
	results := filepath.Join(work, "results")
	limit := j.Limit * time.Duration(r.slow)
	vars := map[string]string{
		"SOURCE": r.sources[s.Name], "WORK": work, "RESULTS": results, "SCRIPTS": filepath.Join(r.dir, "testdata"), "ADDR": pair.A.Addr(), "GOROOT": r.goRoot,
		"TIMEOUT": fmt.Sprint((limit - ownTime).Seconds()),
	}
	expand := func(args []string) []string {
		args = slices.Clone(args)
		for i := range args {
			args[i] = os.Expand(args[i], func(v string) string { return vars[v] })
		}
		return args
	}
	argv := j.Argv
	if only != nil && j.Only != nil {
		argv = slices.Concat(argv, j.Only(only))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := func(h *netnstest.Host, argv []string) (*netnstest.Process, error) {
		argv = expand(argv)
		if m.Flags != nil {
			argv = slices.Concat([]string{r.smcr, "run"}, m.Flags, []string{"--"}, argv)
		}
		cmd := h.Command(ctx, argv[0], argv[1:]...)
		cmd.Env = append(cmd.Env, expand(j.Env)...)
		cmd.Stdout, cmd.Stderr = log, log
		if cmd.Dir = expand([]string{j.Dir})[0]; cmd.Dir == "" {
			cmd.Dir = work
		}
		return h.Start(cmd)
	}
	if m.Loop {
		if err := r.loop(ctx, pair, m, strings.TrimSuffix(o.Log, ".log")); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	var server *netnstest.Process
	if j.Server != nil {
		if server, err = start(pair.A, j.Server); err != nil {
			return nil, err
		}
		defer server.Kill()
	}
	host := pair.A
	if m.Apart {
		host = pair.B
	}
	p, err := start(host, argv)
	if err != nil {
		return nil, err
	}
	// The context ends it.
	switch err := p.Wait(limit + time.Minute); {
	case ctx.Err() != nil:
		o.Ended = fmt.Sprintf("did not end within %v", limit)
	case err != nil:
		o.Ended = err.Error()
	}
	o.Took = time.Since(began)
	if server != nil {
		_ = server.Signal(os.Interrupt)
		_ = server.Wait(5 * time.Second) // Kill ends it
	}
	b, err := os.ReadFile(o.Log)
	if err != nil {
		return nil, fmt.Errorf("suites: %w", err)
	}
	if all := summaryRE.FindAllStringSubmatch(string(b), -1); all != nil {
		o.Over = all[0][1]
	}
	text, err := r.text(j, string(b))
	if err != nil {
		return nil, err
	}
	if o.Tests, err = j.Parse(text, results); err != nil {
		o.Ended = strings.TrimPrefix(o.Ended+"; "+err.Error(), "; ")
	}
	if len(o.Tests) == 0 {
		o.Ended = strings.TrimPrefix(o.Ended+"; it printed no tests", "; ")
	}
	return o, nil
}

// text returns the output of a job as its parser reads it.
func (r *Runner) text(j *Job, out string) (string, error) {
	if !slices.Contains(j.Argv, "-test.v=test2json") {
		return out, nil
	}
	cmd := exec.Command("go", "tool", "test2json")
	cmd.Stdin = strings.NewReader(out)
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("suites: go tool test2json: %w", err)
	}
	return string(b), nil
}
