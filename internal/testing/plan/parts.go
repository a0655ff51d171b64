// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"smcr/internal/testing/guest"
)

// options are the flags of the command line.
type options struct {
	goTool  string // the program go
	seeds   int    // of the simulation, in part sim
	guests  int    // tests with Linux kernels at the same time
	only    string // regexp of tests, or "" for all
	results string // folder
	tools   string // module file of the tools, or "" for tools/go.mod
}

// A part is what one call of make runs.
type part struct {
	name  string
	steps []step
}

// partLimit ends what hangs, and packageLimit a package that hangs, so that the others have their
// time. They are several times what a part and a package take, also on a slow machine. Packages that
// boot kernels wait for their turns, so each may take as long as its part.
const partLimit, packageLimit = time.Hour, 45 * time.Minute

// Folders and packages, as paths within the module.
const (
	module    = "smcr"
	e2eFolder = "internal/testing/e2e"
	soak      = "internal/testing/soak"
	interop   = "internal/testing/interop"
	packages  = "internal/testing/packages"
	stacktest = "userstack/stacktest"
	plots     = "internal/testing/bench/plots" // a module of its own
	apps      = "examples/apps"                // another one
	pods      = "internal/testing/kubernetes"  // another one
)

// kernelPackages boot Linux kernels. A guest needs a processor for itself, so nothing else runs
// beside them, and no more guests than options.guests at once. In their short form only one test
// boots a kernel, TestPeer of package interop: a Linux kernel is the client of the stack in user
// space, then its server.
var kernelPackages = []string{
	"internal/cli", "internal/run",
	"internal/testing/guest", "internal/testing/guesttest", interop, "internal/testing/rdmainterop",
}

// peerPattern is the argument of -run for the one test of package interop that the gate has.
const peerPattern = "^TestPeer$"

// adversaryPackages have hosts that lie, and faults of calls, netdevs and disks.
var adversaryPackages = []string{"internal/testing/adversary", "internal/testing/faults"}

// longPackages take longest, in the gate or in part race, also because they wait. They start first, so that the
// others run meanwhile.
var longPackages = []string{
	"userstack/divert", "rdmaverbs/softroce", "internal/archtest", stacktest, "userstack", "internal/testing/adversary", "userstack/linkgroup",
	"internal/testing/doctest", "userstack/tcpopt", "internal/cli", "internal/smctools", "userstack/service", soak, "internal/serve", "internal/page",
}

// longestFirst sorts packages by longPackages.
func longestFirst(packages []selected) {
	rank := func(p selected) int {
		if i := slices.Index(longPackages, strings.TrimPrefix(p.path, module+"/")); i >= 0 {
			return i
		}
		return len(longPackages)
	}
	slices.SortStableFunc(packages, func(a, b selected) int { return rank(a) - rank(b) })
}

// allParts are the parts of `make test-all`, in their order: what is soonest red comes first.
var allParts = []string{"modules", "cross", "sim", "race", "e2e", "adversary", "packages", "long", "kernel"}

// partNames returns all names, in the order of the usage line and of the table of results.
func partNames() []string { return append([]string{"gate", "test", "lint"}, allParts...) }

// part returns the part of a name.
func (o options) part(name string) (p part, ok bool) {
	p = part{name: name}
	switch name {
	case "gate":
		p.steps = o.gate()
	case "test":
		p.steps = []step{o.toolsStep("test"), o.short()}
	case "lint":
		p.steps = o.lint()
	case "race":
		p.steps = []step{o.toolsStep("test-all"), o.race("all packages but those of other parts, long forms, race detector", func(path string) bool {
			return !slices.Contains(kernelPackages, path) && !inside(e2eFolder, path) && path != soak && path != packages && !slices.Contains(adversaryPackages, path)
		})}
	case "e2e":
		p.steps = []step{o.toolsStep("test-all"), o.goTest("end-to-end: unmodified programs on two hosts", goTest{
			packages: func(path string) bool { return inside(e2eFolder, path) },
			race:     true,
			args:     o.args(),
			byTest:   true,
		})}
	case "adversary":
		p.steps = []step{o.toolsStep("test-all"), o.race("hosts that lie, and faults, long forms, race detector", func(path string) bool {
			return slices.Contains(adversaryPackages, path)
		})}
	case "packages":
		p.steps = []step{o.toolsStep("test-all"), o.goTest("packages: built, installed, used, removed", goTest{
			packages: func(path string) bool { return path == packages },
			args:     o.args(),
			byTest:   true,
		})}
	case "kernel":
		p.steps = []step{o.toolsStep("test-all"), o.kernels()}
	case "long":
		p.steps = []step{o.toolsStep("test-all"), o.goTest("long runs and floods", goTest{
			packages: func(path string) bool { return path == soak },
			args:     o.args(),
			byTest:   true,
		})}
	case "sim":
		p.steps = []step{o.simulation(o.seeds), o.goTest("a seed of the simulation repeats, planted bugs are found", goTest{
			packages: func(path string) bool { return path == stacktest },
			args:     append(o.args(), "-run", "^(TestSimulationRepeats|TestPlantedBugs)$"),
			byTest:   true,
		})}
	case "cross":
		p.steps = o.cross()
	case "modules":
		p.steps = o.modules()
	default:
		return part{}, false
	}
	return p, true
}

// commonArgs returns the arguments of go test. Results of the cache are no results. Tests that run beside others of
// their package wait for most of their time, so there are twice as many as processors.
func commonArgs() []string {
	return []string{"-count=1", "-vet=off", "-timeout", packageLimit.String(), "-parallel", fmt.Sprint(parallelTests)}
}

var parallelTests = 2 * runtime.NumCPU()

// gateArgs is commonArgs for the gate: it says the same each time, so the order of the tests is that of the source.
func (o options) gateArgs(more ...string) []string {
	return slices.Concat(commonArgs(), []string{"-short"}, more)
}

// args is commonArgs for the parts, with ever another order of the tests.
func (o options) args() []string {
	args := append(commonArgs(), "-shuffle=on")
	if o.only != "" {
		args = append(args, "-run", o.only)
	}
	return args
}

// gate returns the steps of `make gate`, see doc.go.
func (o options) gate() []step {
	return []step{
		o.toolsStep("test"),
		// Of all programs, each of which is linked once: package built finds them there. go vet compiles the rest.
		program("build", o.goTool, "build", "-buildvcs=false", "-o", "bin/built/", "./..."),
		o.gofmt(),
		o.vet(),
		o.short(),
		o.goTest("end-to-end: one test for each feature", goTest{
			packages: func(path string) bool { return path == e2eFolder },
			args:     o.gateArgs("-run", featurePattern()),
			byTest:   true,
			retry:    true,
		}),
		o.goTest("a Linux kernel as the peer", goTest{
			packages: func(path string) bool { return path == interop },
			args:     o.gateArgs("-run", peerPattern),
			byTest:   true,
			retry:    true,
		}),
		o.simulation(max(o.seeds/20, 1)),
		o.staticcheck(),
	}
}

// short returns the short forms of all packages, but of those with parts of their own. Most tests
// wait for most of their time, so the packages that run at the same time are half as many again as
// the processors.
func (o options) short() step {
	choice := []string{"-p", fmt.Sprint((3*runtime.NumCPU() + 1) / 2)}
	if o.only != "" {
		choice = append(choice, "-run", o.only)
	}
	return o.goTest("tests of all packages, short forms", goTest{
		packages: func(path string) bool { return !inside(e2eFolder, path) && path != interop },
		args:     o.gateArgs(choice...),
		retry:    true,
	})
}

func (o options) lint() []step { return []step{o.gofmt(), o.generated(), o.vet(), o.staticcheck()} }

// modules returns the checks of the modules beside the main one, and what may change without a
// change of the code.
func (o options) modules() []step {
	const script = `tools=$PWD/tools/go.mod; cd "$1" && "$0" vet ./... && "$0" tool -modfile="$tools" staticcheck ./... && "$0" test ./...`
	steps := []step{o.toolsStep("test-all")}
	for _, m := range []string{plots, apps, pods} {
		steps = append(steps, program("vet, staticcheck and tests of "+m, "sh", "-c", script, o.goTool, m))
	}
	return append(steps,
		program("the compiled eBPF programs are those of the sources", "env", "GO="+o.goTool, "scripts/bpf", "-check"),
		program("the path of the module can be changed", "env", "GO="+o.goTool, "scripts/module-path", "-check"),
		program("known vulnerabilities", "env", "GO="+o.goTool, "scripts/vulncheck"))
}

// race returns long forms with the race detector.
func (o options) race(name string, packages func(string) bool) step {
	return o.goTest(name, goTest{packages: packages, race: true, args: o.args()})
}

// kernels returns the tests that boot kernels. They run at the same time as far as there are turns
// for guests: a package that boots few guests uses the turns that another one leaves.
func (o options) kernels() step {
	return step{"tests with Linux kernels in QEMU", func(ctx context.Context, r *running) error {
		dir, err := guest.MakeTurns(o.guests)
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		return o.goTest("", goTest{
			packages: func(path string) bool { return slices.Contains(kernelPackages, path) },
			race:     true,
			args:     append(o.args(), "-timeout", partLimit.String(), "-p", fmt.Sprint(len(kernelPackages)), "-parallel", fmt.Sprint(o.guests)),
			env:      []string{guest.TurnsVariable + "=" + dir},
			byTest:   true,
		}).run(ctx, r)
	}}
}

// emulated are the packages whose tests run as programs of a big-endian machine: message
// codecs, protocol cores and the control layer.
var emulated = []string{
	"./smc", "./pnet", "./stats", "./quota", "./userstack/wire", "./userstack/conn", "./userstack/linkgroup", "./userstack/rendezvous",
	"./nl", "./rdmaverbs/softroce/header",
}

// notEmulated matches the tests of these packages that need what the emulator does not have:
// SO_NETNS_COOKIE.
const notEmulated = "^TestLiveStacks$"

// cross returns the steps for other architectures. Part packages builds the programs for all of
// them; here the compiler only looks at the rest.
func (o options) cross() []step {
	steps := []step{o.toolsStep("test-all")}
	for _, arch := range []string{"arm64", "s390x"} {
		steps = append(steps, program("go vet for linux/"+arch, "env", "GOOS=linux", "GOARCH="+arch, o.goTool, "vet", "./..."))
	}
	const script = `command -v qemu-s390x-static >/dev/null || { echo "needs qemu-s390x-static: run sudo scripts/setup-test-tools"; exit 77; }
export GOOS=linux GOARCH=s390x CGO_ENABLED=0
skip=$1; shift; exec "$0" test -short -vet=off -exec qemu-s390x-static -skip "$skip" "$@"`
	return append(steps, program("tests of codecs, cores and control layer on s390x, big-endian",
		slices.Concat([]string{"sh", "-c", script, o.goTool, notEmulated}, emulated)...))
}

// toolsStep installs the programs that the tests use.
func (o options) toolsStep(of string) step {
	return program("programs that the tests use", "scripts/setup-test-tools", of)
}

func (o options) gofmt() step {
	return program("gofmt", "sh", "-c", `bad=$(gofmt -l .) && [ -z "$bad" ] || { echo "not formatted, run gofmt -w:"; echo "$bad"; exit 1; }`)
}

// generated checks that the manual pages and completions are up to date.
func (o options) generated() step {
	return program("generated files", o.goTool, "test", "-run", "^TestUpToDate$", "./internal/gendocs")
}

func (o options) vet() step { return program("go vet", o.goTool, "vet", "./...") }

func (o options) staticcheck() step {
	return program("staticcheck", o.goTool, "tool", "-modfile=tools/go.mod", "staticcheck", "./...")
}

func (o options) simulation(seeds int) step {
	return program(fmt.Sprintf("simulation of whole stacks, %d seeds", seeds), "env", "GO="+o.goTool, "scripts/simulate", fmt.Sprint(seeds))
}

// inside reports whether a package is the folder or lies below it.
func inside(folder, p string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// errRed is the end of a part that is not green. What it has printed says why.
var errRed = errors.New("not green")

// run runs a part, prints and keeps its result.
func (o options) run(ctx context.Context, out io.Writer, p part) error {
	return o.steps(ctx, out, p, newResult(p.name))
}

// steps is run with the result that the steps add to. Each step runs, also after one that failed.
func (o options) steps(ctx context.Context, out io.Writer, p part, r *result) error {
	if err := os.MkdirAll(o.results, 0o755); err != nil {
		return err
	}
	before, err := readResult(o.results, p.name)
	if err != nil {
		fmt.Fprintf(out, "the result before cannot be read: %v\n", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, partLimit, fmt.Errorf("%s took more than %v", p.name, partLimit))
	defer cancel()
	for i, s := range p.steps {
		fmt.Fprintf(out, "[%d/%d] %s\n", i+1, len(p.steps), s.name)
		at, text := time.Now(), ""
		if err := context.Cause(ctx); err != nil {
			text = err.Error()
		} else if err := s.run(ctx, &running{out: out, results: o.results, at: i + 1, result: r}); err != nil {
			text = err.Error()
			fmt.Fprintf(out, "    FAILED: %v\n", err)
		}
		took := time.Since(at).Seconds()
		r.Seconds += took
		r.Steps = append(r.Steps, stepped{s.name, took, text})
	}
	r.OK = !slices.ContainsFunc(r.Steps, func(s stepped) bool { return s.Error != "" })
	r.print(out, before)
	// A choice of tests says nothing of the whole, and the next run is compared with a whole one.
	if o.only == "" {
		if err := r.write(o.results); err != nil {
			return err
		}
	}
	if !r.OK {
		return fmt.Errorf("%s: %w", p.name, errRed)
	}
	return nil
}

// all runs the parts of `make test-all` that this tree has not passed, and prints the table.
func (o options) all(ctx context.Context, out io.Writer, again bool) error {
	tree, err := treeNow()
	if err != nil {
		fmt.Fprintf(out, "each part runs: %v\n", err)
	}
	var errs []error
	for _, name := range allParts {
		was, err := readResult(o.results, name)
		if err == nil && !again && was != nil && was.OK && tree != "" && was.Tree == tree {
			fmt.Fprintf(out, "==> %s: green for this tree\n", name)
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		fmt.Fprintf(out, "==> %s\n", name)
		p, _ := o.part(name)
		if err := o.run(ctx, out, p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, printResults(out, o.results))...)
}
