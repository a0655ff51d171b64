// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"smcr/internal/testing/mutants/mutate"
	"smcr/internal/testing/mutants/trial"
)

// options are the flags of the command line.
type options struct {
	jobs     int
	sample   int
	seed     uint64
	run      string
	only     string
	judge    string
	judgeRun string
	json     bool
	root     bool
	known    string
	packages []string
}

func main() {
	var o options
	flag.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "mutants that are tried at the same time")
	flag.IntVar(&o.sample, "sample", 0, "try only so many mutants of each package, chosen at random; 0 for all")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the choice")
	flag.StringVar(&o.run, "run", "", "regexp: use only these tests")
	flag.StringVar(&o.only, "only", "", "regexp: try only mutants whose line of the report matches")
	flag.StringVar(&o.judge, "judge", "", "package whose tests also try what survives")
	flag.StringVar(&o.judgeRun, "judge-run", "", "regexp: tests of that package")
	flag.BoolVar(&o.json, "json", false, "one JSON object for each mutant")
	flag.BoolVar(&o.root, "root", false, "run the tests with all rights, if root: only in a container")
	flag.StringVar(&o.known, "known", "internal/testing/mutants/testdata/survivors", "folder with the known survivors")
	flag.Parse()
	if o.packages = flag.Args(); len(o.packages) == 0 {
		fmt.Fprintln(os.Stderr, "usage: mutants [flags] PACKAGE...")
		flag.PrintDefaults()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := run(ctx, o, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// row is a mutant and what became of it, as in the JSON output.
type row struct {
	Package string        `json:"package"`
	File    string        `json:"file"`
	Line    int           `json:"line"`
	Func    string        `json:"func"`
	Change  string        `json:"change"`
	Outcome trial.Outcome `json:"outcome"`
	// By is the package whose tests killed it.
	By string `json:"by,omitempty"`
	// Reason is why it is known to survive.
	Reason string `json:"reason,omitempty"`
}

// run tries the mutants of all packages. It reports whether the lists of known survivors
// are true.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (bool, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return false, err
	}
	tests, err := regexp.Compile(o.run)
	if err != nil {
		return false, err
	}
	judgeTests, err := regexp.Compile(o.judgeRun)
	if err != nil {
		return false, err
	}
	m, err := trial.Write(ctx, mutate.All, o.root, o.packages...)
	if err != nil {
		return false, err
	}
	defer m.Close() // a temporary folder
	byPackage := map[string][]mutate.Mutant{}
	var order []string
	for _, mutant := range m.Mutants {
		if byPackage[mutant.Package] == nil {
			order = append(order, mutant.Package)
		}
		byPackage[mutant.Package] = append(byPackage[mutant.Package], mutant)
	}
	var second *trial.Judge
	if o.judge != "" {
		if second, err = judge(ctx, m, o.judge, o.jobs, judgeTests, stderr); err != nil {
			return false, err
		}
	}
	var sums []summary
	ok := true
	for _, pkg := range order {
		chosen := choose(byPackage[pkg], only, o.sample, o.seed)
		known, err := readSurvivors(filepath.Join(o.known, strings.TrimPrefix(pkg, "smcr/")+".txt"))
		if err != nil {
			return false, err
		}
		first, err := judge(ctx, m, pkg, o.jobs, tests, stderr)
		if err != nil {
			return false, err
		}
		rows, err := try(ctx, o, chosen, first, second, stderr)
		if err != nil {
			return false, err
		}
		if unknown := known.unknown(byPackage[pkg]); len(unknown) > 0 {
			ok = false
			fmt.Fprintf(stderr, "%s: no such mutant any more:\n\t%s\n", known.file, strings.Join(unknown, "\n\t"))
		}
		s := summary{pkg: pkg, all: len(byPackage[pkg])}
		for i := range rows {
			r := &rows[i]
			r.Reason = known.reason(r.Func, r.Change)
			if r.Reason != "" && (r.Outcome == trial.Killed || r.Outcome == trial.Endless) {
				ok = false
				fmt.Fprintf(stderr, "%s: a test notices this now: %s: %s\n", known.file, r.Func, r.Change)
			}
			s.add(*r)
			if err := r.print(stdout, o.json); err != nil {
				return false, err
			}
		}
		sums = append(sums, s)
	}
	out := stdout
	if o.json {
		out = stderr
	}
	return ok, printSummaries(out, sums)
}

// judge compiles the tests of a package and says which of them it does not use.
func judge(ctx context.Context, m *trial.Module, pkg string, jobs int, match *regexp.Regexp, stderr io.Writer) (*trial.Judge, error) {
	t, err := m.Compile(ctx, pkg)
	if err != nil {
		return nil, err
	}
	j, err := t.Judge(ctx, jobs, match)
	if err != nil {
		return nil, err
	}
	var unused []string
	for name, why := range j.Unused {
		unused = append(unused, name+" ("+why+")")
	}
	if slices.Sort(unused); len(unused) > 0 {
		fmt.Fprintf(stderr, "%s: not used: %s\n", pkg, strings.Join(unused, ", "))
	}
	return j, nil
}

// choose returns the mutants to try, in the order of the source.
func choose(all []mutate.Mutant, only *regexp.Regexp, sample int, seed uint64) []mutate.Mutant {
	var chosen []mutate.Mutant
	for _, m := range all {
		if only.MatchString(m.String()) {
			chosen = append(chosen, m)
		}
	}
	if sample > 0 && sample < len(chosen) {
		r := rand.New(rand.NewPCG(seed, 0))
		r.Shuffle(len(chosen), func(i, k int) { chosen[i], chosen[k] = chosen[k], chosen[i] })
		chosen = chosen[:sample]
		slices.SortFunc(chosen, func(a, b mutate.Mutant) int { return a.ID - b.ID })
	}
	return chosen
}

// try tries some mutants of a package.
func try(ctx context.Context, o options, mutants []mutate.Mutant, first, second *trial.Judge, stderr io.Writer) ([]row, error) {
	rows := make([]row, len(mutants))
	index := make([]int, len(mutants))
	for i := range index {
		index[i] = i
	}
	var mu sync.Mutex
	done, told := 0, time.Now()
	err := trial.Each(o.jobs, index, func(i int) error {
		m := mutants[i]
		outcome, err := first.Try(ctx, m.ID)
		if err != nil {
			return err
		}
		by := m.Package
		if second != nil && (outcome == trial.Survived || outcome == trial.NotCovered) {
			other, err := second.Try(ctx, m.ID)
			if err != nil {
				return err
			}
			if other == trial.Killed || other == trial.Endless {
				outcome, by = other, o.judge
			}
		}
		if outcome == trial.Survived || outcome == trial.NotCovered {
			by = ""
		}
		rows[i] = row{Package: m.Package, File: m.File, Line: m.Line, Func: m.Func, Change: m.Change, Outcome: outcome, By: by}
		mu.Lock()
		defer mu.Unlock()
		if done++; time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(stderr, "%s: %d of %d mutants\n", m.Package, done, len(mutants))
		}
		return nil
	})
	if errors.Is(err, context.Canceled) {
		return nil, errors.New("interrupted")
	}
	return rows, err
}

// print prints a row: all in JSON, and as text those that survived without a known reason.
func (r row) print(w io.Writer, asJSON bool) error {
	if asJSON {
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", b)
		return err
	}
	if r.Reason != "" || r.Outcome != trial.Survived && r.Outcome != trial.NotCovered {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s/%s:%d: %s: %s: %s\n", strings.TrimPrefix(r.Package, "smcr/"), r.File, r.Line, r.Outcome, r.Func, r.Change)
	return err
}
