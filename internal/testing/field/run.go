// SPDX-License-Identifier: Apache-2.0

package field

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"smcr/internal/cgroup"
	"smcr/internal/testing/netnstest"
)

//go:embed testdata/*.py
var scripts embed.FS

// Time limits. Each is several times what an idle machine needs.
const (
	startTime = 30 * time.Second // until a side listens
	caseTime  = 60 * time.Second // until a side has ended
	port      = 7000
)

// A Field runs cases. It is used by one goroutine.
type Field struct {
	smcr, python, dir string
	hosts             map[string]*netnstest.Pair
	judged            map[string][]answers // by TCP
	port              int
	carried           int // connections over SMC-R of the stacks of a mode with Bare, until now
}

// New returns a Field for a program smcr. The caller closes it.
func New(smcr string) (*Field, error) {
	f := &Field{smcr: smcr, hosts: map[string]*netnstest.Pair{}, judged: map[string][]answers{}, port: port}
	var err error
	// A python3 of a version manager is a script around the program.
	if f.python, err = exec.LookPath("/usr/bin/python3"); err != nil {
		if f.python, err = exec.LookPath("python3"); err != nil {
			return nil, fmt.Errorf("field: %w", err)
		}
	}
	if f.dir, err = os.MkdirTemp("", "smcr-field-"); err != nil {
		return nil, fmt.Errorf("field: %w", err)
	}
	if err := os.CopyFS(f.dir, scripts); err != nil {
		return nil, errors.Join(fmt.Errorf("field: %w", err), f.Close())
	}
	return f, nil
}

// Close removes the hosts and files of the Field.
func (f *Field) Close() error {
	var all error
	for _, p := range f.hosts {
		all = errors.Join(all, p.Close())
	}
	return errors.Join(all, os.RemoveAll(f.dir))
}

// A Result is what came of a variant of a case in a mode.
type Result struct {
	Case    *Case
	Variant string
	Mode    Mode
	// Answers is what each side printed, by "SIDE/QUESTION".
	Answers answers
	// Over counts the connections of both sides as smcr run reports them: smc and tcp.
	Over map[string]int
	// Differences are the answers that are not those of TCP, one a line. Empty is good.
	Differences []string
	// Log is all output of both sides.
	Log string
}

// Run runs a variant of a case in a mode, and in TCP unless it has been before. An error
// means that the hosts could not be made.
func (f *Field) Run(ctx context.Context, c *Case, variant string, m Mode) (*Result, error) {
	r, err := f.once(ctx, c, variant, m)
	if err != nil {
		return nil, err
	}
	key := c.Name + "/" + variant
	ended := r.Differences
	for i := 0; ; i++ {
		if i == len(f.judged[key]) {
			if err := f.judge(ctx, c, variant, key); err != nil {
				return nil, err
			}
		}
		r.Differences = append(slices.Clone(ended), differences(f.judged[key], r)...)
		if r.Good() || i == judgements-1 {
			return r, nil
		}
	}
}

// judgements is how often TCP is asked before an answer counts as one that TCP does not give.
const judgements = 3

// judge runs a variant of a case over TCP and keeps its answers.
func (f *Field) judge(ctx context.Context, c *Case, variant, key string) error {
	r, err := f.once(ctx, c, variant, Modes[0])
	if err != nil {
		return err
	}
	if len(r.Answers) == 0 || len(r.Differences) > 0 {
		return fmt.Errorf("field: %s prints nothing or fails over TCP: %s\n%s", key, strings.Join(r.Differences, "; "), r.Log)
	}
	f.judged[key] = append(f.judged[key], r.Answers)
	return nil
}

// pair returns the hosts for a case in a mode.
func (f *Field) pair(c *Case, m Mode) (*netnstest.Pair, error) {
	if p := f.hosts[m.Name]; p != nil {
		if !c.Fresh || m.reference() {
			return p, nil
		}
		delete(f.hosts, m.Name)
		if err := p.Close(); err != nil {
			return nil, err
		}
	}
	p, err := netnstest.Create(netnstest.Options{OneMachine: m.OneMachine})
	if err == nil && m.Bare {
		if err = f.serve(p); err != nil {
			err = errors.Join(err, p.Close())
		}
	}
	if err == nil {
		f.hosts[m.Name] = p
	}
	return p, err
}

// serve starts the stacks of hosts, which take the connections of all programs. They end with the hosts.
func (f *Field) serve(p *netnstest.Pair) error {
	f.carried = 0
	top, err := cgroup.Top()
	if err != nil {
		return fmt.Errorf("field: %w", err)
	}
	for _, h := range []*netnstest.Host{p.A, p.B} {
		stack, err := h.Start(h.Command(context.Background(), f.smcr, "serve", "--cgroup", top))
		if err != nil {
			return fmt.Errorf("field: %w", err)
		}
		if err := stack.WaitOutput("msg=serving", startTime); err != nil {
			return fmt.Errorf("field: %w", err)
		}
	}
	return nil
}

var carriedRE = regexp.MustCompile(`(?m)^ *SMC connections +(\d+)`)

// countCarried counts the connections that the stacks of the hosts have carried over SMC-R since the last run.
func (f *Field) countCarried(ctx context.Context, p *netnstest.Pair, r *Result) error {
	all := 0
	for _, h := range []*netnstest.Host{p.A, p.B} {
		out, err := h.Output(ctx, f.smcr, "--backend", "user", "stats", "show")
		m := carriedRE.FindStringSubmatch(out)
		if err != nil || m == nil {
			return fmt.Errorf("field: statistics of a stack: %w in %q", err, out)
		}
		n, _ := strconv.Atoi(m[1])
		all += n
	}
	r.Over["smc"], f.carried = all-f.carried, all
	return nil
}

// A side is one of the two programs of a case.
type side struct {
	role string
	proc *netnstest.Process
	out  *netnstest.Buffer
}

// once runs a variant of a case. The differences are then only that a side did not end.
func (f *Field) once(ctx context.Context, c *Case, variant string, m Mode) (*Result, error) {
	p, err := f.pair(c, m)
	if err != nil {
		return nil, err
	}
	// Each run has a port of its own, so that TIME_WAIT of the run before does not matter.
	f.port++
	dir, err := os.MkdirTemp(f.dir, "events-")
	if err != nil {
		return nil, fmt.Errorf("field: %w", err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, startTime+2*caseTime)
	defer cancel()
	r := &Result{Case: c, Variant: variant, Mode: m, Answers: answers{}, Over: map[string]int{}}
	start := func(role string, h *netnstest.Host, flags []string) (*side, error) {
		argv := []string{f.python, filepath.Join(f.dir, "testdata", c.Name+".py"), role, p.A.Addr(), fmt.Sprint(f.port), dir, variant}
		if flags != nil {
			argv = slices.Concat([]string{f.smcr, "run"}, flags, []string{"--"}, argv)
		}
		cmd := h.Command(ctx, argv[0], argv[1:]...)
		s := &side{role: role, out: &netnstest.Buffer{}}
		cmd.Stdout = s.out
		cmd.Env = append(cmd.Env, "PYTHONDONTWRITEBYTECODE=1")
		s.proc, err = h.Start(cmd)
		return s, err
	}
	first := "server"
	if c.Alone {
		first = "both"
	}
	server, err := start(first, p.A, m.Server)
	if err != nil {
		return nil, err
	}
	sides := []*side{server}
	if !c.Alone {
		if err := f.listening(dir, server); err != nil {
			r.Differences = append(r.Differences, err.Error())
		} else {
			s, err := start("client", p.B, m.Client)
			if err != nil {
				return nil, err
			}
			sides = append(sides, s)
		}
	}
	for _, s := range slices.Backward(sides) {
		if err := s.proc.Wait(caseTime); errors.Is(err, os.ErrDeadlineExceeded) {
			r.Differences = append(r.Differences, s.role+" does not end")
			s.proc.Kill()
		}
	}
	for _, s := range sides {
		r.add(s)
	}
	if m.Bare {
		if err := f.countCarried(ctx, p, r); err != nil {
			return nil, err
		}
	}
	return r, ctx.Err()
}

// listening waits until the server listens.
func (f *Field) listening(dir string, s *side) error {
	return netnstest.Until(startTime, func() error {
		_, err := os.Stat(filepath.Join(dir, "listening"))
		select {
		case <-s.proc.Done():
			return netnstest.Stop(errors.New("the server ended before it listened"))
		default:
			return err
		}
	})
}

var summaryRE = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP`)

// add adds what a side has printed, and how its program ended: by an exception, or by a
// signal. Sides end themselves in other ways only where the case says so.
func (r *Result) add(s *side) {
	log := s.out.String() + s.proc.Log()
	r.Log += fmt.Sprintf("--- %s (%v)\n%s", s.role, s.proc.Cmd.ProcessState, log)
	for line := range strings.Lines(s.out.String()) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			r.Answers[s.role+"/"+k] = append(r.Answers[s.role+"/"+k], v)
		}
	}
	if lines := strings.Split(strings.TrimSpace(s.proc.Log()), "\n"); strings.Contains(s.proc.Log(), "Traceback (most recent call last)") {
		at := slices.IndexFunc(lines, func(l string) bool { return regexp.MustCompile(`^[A-Za-z]+Error`).MatchString(l) })
		r.Answers[s.role+"/ends with"] = []string{lines[max(at, 0)]}
	}
	if m := summaryRE.FindStringSubmatch(log); m != nil {
		for i, name := range []string{"smc", "tcp"} {
			n := 0
			_, _ = fmt.Sscan(m[i+1], &n)
			r.Over[name] += n
		}
	}
}

// answers has what both sides printed, by "SIDE/QUESTION".
type answers map[string][]string

func (a answers) to(question string) string { return strings.Join(a[question], ", ") }

// differences returns the answers of a result that TCP has not given.
func differences(tcp []answers, r *Result) []string {
	questions := map[string]bool{}
	for _, a := range append(slices.Clone(tcp), r.Answers) {
		for k := range a {
			questions[k] = true
		}
	}
	var all []string
	for k := range questions {
		got := r.Answers.to(k)
		if slices.ContainsFunc(tcp, func(a answers) bool { return a.to(k) == got }) {
			continue
		}
		all = append(all, fmt.Sprintf("%s: %s; TCP: %s", k, cmp.Or(got, "nothing"), cmp.Or(tcp[0].to(k), "nothing")))
	}
	slices.Sort(all)
	return all
}
