// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// options are the flags of the command line.
type options struct {
	goTool  string // the program go
	seeds   int    // of the simulation, in plan sim
	guests  int    // tests with Linux kernels at the same time
	timeout string // of a test binary
	only    string // regexp of end-to-end tests, or "" for all
}

// Folders and packages, as paths within the module.
const (
	module    = "smcr"
	e2eFolder = "internal/testing/e2e"
	soak      = "internal/testing/soak"
	plots     = "internal/testing/bench/plots" // a module of its own
	apps      = "examples/apps"                // another one
	pods      = "internal/testing/kubernetes"  // another one
)

// kernelPackages boot Linux kernels. A guest needs a processor for itself, so their tests
// run after all other tests, and no more guests than options.guests at once. In their short form
// only one test boots a kernel, TestPeer of package interop: a Linux kernel is the
// client of the stack in user space, then its server.
var kernelPackages = []string{
	"internal/cli", "internal/run",
	"internal/testing/guest", "internal/testing/guesttest", "internal/testing/interop", "internal/testing/joinedtest", "internal/testing/rdmainterop",
}

// racePackages are the packages in which many goroutines share state. `make test`
// runs their tests with the race detector. `make test-all` does so for all packages.
var racePackages = []string{
	"userstack", "userstack/broker", "userstack/driver", "userstack/engine", "userstack/launch", "userstack/relay", "userstack/service",
}

// longPackages take longest, also because they wait. They start first, so that the
// others run meanwhile.
var longPackages = []string{"internal/testing/interop", "internal/testing/packages", "userstack/tcpopt", "userstack/launch", "userstack/service"}

// planNames returns the names of the plans, in the order of the usage line.
func planNames() []string {
	return []string{"test", "test-all", "lint", "race", "sim", "cross", "e2e", "kernel"}
}

// plan returns the steps of a plan, or nil if there is no plan of that name.
func (o options) plan(name string) []step {
	switch name {
	case "test":
		return o.test()
	case "test-all":
		return o.testAll()
	case "lint":
		return o.lint()
	case "race":
		return []step{o.race()}
	case "sim":
		return o.sim()
	case "cross":
		return o.cross()
	case "e2e":
		return []step{o.e2e()}
	case "kernel":
		return []step{o.kernel()}
	}
	return nil
}

// test returns the steps of `make test`: about ten minutes on two processors, with an
// empty build cache.
func (o options) test() []step {
	race := o.goTest("tests of the concurrent packages with the race detector, short forms", goTest{
		packages: func(p string) bool { return slices.Contains(racePackages, p) },
		race:     true,
		args:     []string{"-short", "-shuffle=on", "-vet=off"},
	})
	// The tests before have compiled the packages that these use.
	race.beside = []step{o.vet(), o.simulation(max(o.seeds/10, 1))}
	return []step{
		o.tools("test"),
		o.gofmt(),
		o.goTest("tests of all packages, short forms, and a Linux kernel as the peer", goTest{
			packages: func(p string) bool { return !slices.Contains(racePackages, p) && !inside(e2eFolder, p) },
			args:     []string{"-short", "-shuffle=on", "-vet=off"},
		}),
		race,
		o.goTest("end-to-end: one test for each feature", goTest{
			packages: func(p string) bool { return p == e2eFolder },
			args:     []string{"-run", featurePattern(), "-vet=off", "-count=1"},
			byTest:   true,
		}),
	}
}

// testAll returns the steps of `make test-all`: at most 30 minutes on two processors,
// with an empty build cache. The tests with the race detector, the end-to-end tests and
// those with Linux kernels wait much. What only computes runs beside them.
func (o options) testAll() []step {
	race, e2e, kernel := o.race(), o.e2e(), o.kernel()
	race.beside = o.analyses()
	e2e.beside = o.cross()
	kernel.beside = o.sim()
	return []step{o.tools("test-all"), o.gofmt(), o.generated(), race, e2e, o.longRuns(), kernel}
}

func (o options) lint() []step {
	return append([]step{o.gofmt(), o.generated()}, o.analyses()...)
}

// analyses returns the steps that look for errors in the source code.
func (o options) analyses() []step {
	return []step{
		o.vet(),
		command("staticcheck", o.goTool, "tool", "-modfile=tools/go.mod", "staticcheck", "./..."),
		command("vet, staticcheck and tests of "+plots, "sh", "-c",
			`tools=$PWD/tools/go.mod; cd "$1" && "$0" vet ./... && "$0" tool -modfile="$tools" staticcheck ./... && "$0" test ./...`, o.goTool, plots),
		command("vet, staticcheck and tests of "+apps, "sh", "-c",
			`tools=$PWD/tools/go.mod; cd "$1" && "$0" vet ./... && "$0" tool -modfile="$tools" staticcheck ./... && "$0" test ./...`, o.goTool, apps),
		command("vet, staticcheck and tests of "+pods, "sh", "-c",
			`tools=$PWD/tools/go.mod; cd "$1" && "$0" vet ./... && "$0" tool -modfile="$tools" staticcheck ./... && "$0" test ./...`, o.goTool, pods),
		command("the path of the module can be changed", "env", "GO="+o.goTool, "scripts/module-path", "-check"),
		// Last, because it depends on what others find out about our dependencies.
		command("known vulnerabilities", "env", "GO="+o.goTool, "scripts/vulncheck"),
	}
}

// race returns all tests but those that boot kernels, the end-to-end tests and the long
// runs, in their long forms and with the race detector.
func (o options) race() step {
	return o.goTest("tests with the race detector, long forms", goTest{
		packages: func(p string) bool { return !slices.Contains(kernelPackages, p) && !inside(e2eFolder, p) && p != soak },
		race:     true,
		args:     []string{"-timeout", raceTimeout, "-shuffle=on"},
	})
}

// raceTimeout is several times what the slowest package of race takes. A test that hangs leaves
// the steps after it their time, where the whole has a limit.
const raceTimeout = "20m"

// sim returns the simulation, and the test that a seed repeats, which the race
// detector disturbs.
func (o options) sim() []step {
	return []step{
		o.simulation(o.seeds),
		o.goTest("a seed of the simulation repeats", goTest{
			packages: func(p string) bool { return p == "userstack/stacktest" },
			args:     []string{"-run", "^TestSimulationRepeats$"},
			byTest:   true,
		}),
	}
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

// bigEndian returns the tests of these packages on s390x, short forms.
func (o options) bigEndian() step {
	const script = `command -v qemu-s390x-static >/dev/null || { echo "needs qemu-s390x-static: run sudo scripts/setup-test-tools"; exit 77; }
export GOOS=linux GOARCH=s390x CGO_ENABLED=0
skip=$1; shift; exec "$0" test -short -vet=off -exec qemu-s390x-static -skip "$skip" "$@"`
	return command("tests of codecs, cores and control layer on s390x, big-endian", slices.Concat([]string{"sh", "-c", script, o.goTool, notEmulated}, emulated)...)
}

// cross returns the steps for other architectures. -trimpath is a flag of `make dist`, which the
// tests of package packages call: what one of them has compiled, the other one need not.
func (o options) cross() []step {
	var steps []step
	for _, arch := range []string{"arm64", "s390x"} {
		steps = append(steps, command("build and vet for linux/"+arch, "env", "GOOS=linux", "GOARCH="+arch,
			"sh", "-c", `"$0" build -buildvcs=false -trimpath -o /dev/null ./... && "$0" vet ./...`, o.goTool))
	}
	return append(steps, o.bigEndian())
}

func (o options) e2e() step {
	g := goTest{
		packages: func(p string) bool { return inside(e2eFolder, p) },
		race:     true,
		args:     []string{"-shuffle=on", "-count=1"},
		byTest:   true,
	}
	if o.only != "" {
		g.args = append(g.args, "-run", o.only)
		g.verbose = true
	}
	return o.goTest("end-to-end: unmodified programs on two hosts", g)
}

// kernel returns the tests that boot kernels. They run at the same time as far as there
// are turns for guests: a package that boots few guests uses the turns that another one
// leaves.
func (o options) kernel() step {
	return o.goTest("tests with Linux kernels in QEMU", goTest{
		packages: func(p string) bool { return slices.Contains(kernelPackages, p) },
		race:     true,
		args:     []string{"-p", fmt.Sprint(len(kernelPackages)), "-parallel", fmt.Sprint(o.guests)},
		guests:   o.guests,
		byTest:   true,
	})
}

// longRuns returns the long runs and the floods, in the forms of some minutes. They measure
// memory, which the race detector changes, and use the whole machine.
func (o options) longRuns() step {
	return o.goTest("long runs and floods", goTest{
		packages: func(p string) bool { return p == soak },
		args:     []string{"-count=1"},
		byTest:   true,
	})
}

// tools installs the programs that the tests of a plan use.
func (o options) tools(plan string) step {
	return command("programs that the tests use", "scripts/setup-test-tools", plan)
}

func (o options) gofmt() step {
	return command("gofmt", "sh", "-c", `bad=$(gofmt -l .) && [ -z "$bad" ] || { echo "not formatted, run gofmt -w:"; echo "$bad"; exit 1; }`)
}

// generated checks that the manual pages and completions are up to date.
func (o options) generated() step {
	return command("generated files", o.goTool, "test", "-run", "^TestUpToDate$", "./internal/gendocs")
}

func (o options) vet() step { return command("go vet", o.goTool, "vet", "./...") }

func (o options) simulation(seeds int) step {
	return command(fmt.Sprintf("simulation of whole stacks, %d seeds", seeds), "env", "GO="+o.goTool, "scripts/simulate", fmt.Sprint(seeds))
}

func (o options) goTest(name string, g goTest) step {
	g.goTool = o.goTool
	g.args = append([]string{"-timeout", o.timeout}, g.args...)
	return step{name: name, run: g.run}
}

// inside reports whether a package is the folder or lies below it.
func inside(folder, p string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }
