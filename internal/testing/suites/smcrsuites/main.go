// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"smcr/internal/testing/suites"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "smcrsuites:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

// A selection is what the command line asks for.
type selection struct {
	suites, modes []string // empty: all
	jobs          *regexp.Regexp
	quick         bool
}

func (s *selection) has(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, name)
}

// job reports whether a job is run.
func (s *selection) job(j suites.Job) bool {
	return s.jobs.MatchString(j.Name) && (!s.quick || j.Quick)
}

// mode reports whether a mode is run: it was asked for, or one that it judges was.
func (s *selection) mode(m suites.Mode) bool {
	return s.has(s.modes, m.Name) || slices.ContainsFunc(suites.Modes, func(o suites.Mode) bool {
		return o.TheJudge().Name == m.Name && s.has(s.modes, o.Name)
	})
}

func run(ctx context.Context, args []string) (good bool, err error) {
	flags := flag.NewFlagSet("smcrsuites", flag.ContinueOnError)
	smcr := flags.String("smcr", "bin/smcr", "the program under test")
	names := flags.String("suites", "", "run only these suites, separated by commas")
	modes := flags.String("modes", "", "run only these modes and their judges, separated by commas: tcp, host, roce, adapt, tcploop, loop")
	jobs := flags.String("jobs", "", "run only the jobs that match the regular expression")
	quick := flags.Bool("quick", false, "run only the quick jobs")
	list := flags.Bool("list", false, "list suites and jobs")
	logs := flags.String("logs", filepath.Join("bin", "suites"), "folder for the output of the jobs")
	slow := flags.Int("slow", 1, "jobs may take so many times their limits")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	sel := &selection{suites: split(*names), modes: split(*modes), quick: *quick}
	if sel.jobs, err = regexp.Compile(*jobs); err != nil {
		return false, err
	}
	all := suites.All()
	for _, n := range sel.suites {
		if !slices.ContainsFunc(all, func(s suites.Suite) bool { return s.Name == n }) {
			return false, fmt.Errorf("no suite %q: -list lists them", n)
		}
	}
	for _, n := range sel.modes {
		if !slices.ContainsFunc(suites.Modes, func(m suites.Mode) bool { return m.Name == n }) {
			return false, fmt.Errorf("no mode %q", n)
		}
	}
	if !slices.ContainsFunc(all, func(s suites.Suite) bool { return sel.has(sel.suites, s.Name) && slices.ContainsFunc(s.Jobs, sel.job) }) {
		return false, fmt.Errorf("no job matches %q: -list lists them", *jobs)
	}
	if *list {
		for _, s := range all {
			for _, j := range s.Jobs {
				fmt.Printf("%s: %s\n", s.Name, j.Name)
			}
		}
		return true, nil
	}
	r, err := suites.NewRunner(*smcr, *logs, *slow)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var tables []string
	good = true
	for i := range all {
		s := &all[i]
		if !sel.has(sel.suites, s.Name) {
			continue
		}
		t, err := runSuite(ctx, r, s, sel)
		if me, ok := errors.AsType[*suites.MissingError](err); ok {
			fmt.Printf("%s: left out: %v\n", s.Name, me)
			continue
		}
		if err != nil {
			return false, err
		}
		good = good && t.Good()
		tables = append(tables, t.String())
	}
	fmt.Print("\n", strings.Join(tables, "\n"))
	return good, nil
}

// split splits a list at its commas.
func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// runSuite runs the selected jobs of a suite in all selected modes.
func runSuite(ctx context.Context, r *suites.Runner, s *suites.Suite, sel *selection) (*suites.Table, error) {
	version, err := r.Prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	t := &suites.Table{Suite: s.Name, Version: version}
	fmt.Printf("%s: %s\n", s.Name, version)
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if !sel.job(*j) {
			continue
		}
		judges := map[string]*suites.Outcome{}
		for _, m := range suites.Modes {
			if !sel.mode(m) || !j.Has(m) {
				continue
			}
			o, err := r.Run(ctx, s, j, m, nil)
			if err != nil {
				return nil, err
			}
			// With "-modes loop", tcploop is a judge, and has none.
			var differences []suites.Difference
			if judge := judges[m.TheJudge().Name]; judge != nil {
				if differences, err = r.Compare(ctx, s, j, m, judge, o); err != nil {
					return nil, err
				}
			}
			judges[m.Name] = o
			t.Add(j, m, o, differences)
			report(j, m, o, differences)
		}
	}
	return t, nil
}

// printed is how many differences of a job are printed while others run. The table has all that
// were seen each time.
const printed = 30

// report prints what came of a job, while the others run.
func report(j *suites.Job, m suites.Mode, o *suites.Outcome, differences []suites.Difference) {
	fmt.Printf("    %-28s %-7s %5d tests %5.0f s  %s %s\n", j.Name, m.Name, len(o.Tests), o.Took.Round(time.Second).Seconds(), o.Ended, o.Over)
	for i, d := range differences {
		// A job that ended early lacks all later tests.
		if i == printed {
			fmt.Printf("        and %d more\n", len(differences)-printed)
			break
		}
		fmt.Printf("        %s\n", &d)
	}
}
