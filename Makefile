# SPDX-License-Identifier: Apache-2.0
#
# make demo      two hosts, a web server, a client: SMC-R at work (root)
# make test      the short forms of the tests of all packages (root)
# make gate      what continuous integration asks: is main broken? (root)
# make test-all  everything, in parts: long tests, other architectures, Linux kernels (root)
# make help      the other targets

GO       ?= go
PREFIX   ?= /usr/local
DESTDIR  ?=
# COMPAT=no installs smcr alone, without the programs of smc-tools' names.
COMPAT   ?= yes
# What the program tells besides the release in cmd/smcr/version.go.
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)

# Seeds of the simulation that part sim of make test-all tries; make gate tries a twentieth.
SIMSEEDS    ?= 3000
# Time for each fuzz target, for the soak, and for each flood.
FUZZTIME    ?= 30s
TIME        ?= 30m
FLOODTIME   ?= 5m
TESTTIMEOUT ?= 35m
# How often make repeat runs each test, and beside how many busy loops.
TIMES       ?= 20
LOAD        ?= 0
# Connections that make connections opens and closes.
N           ?= 1000000
# Connections that make resets has reset.
RESETS      ?= 200000

GOBUILD      = env CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags '-s -w -X main.revision=$(VERSION)'
# Architectures of make dist, and the one of make deb and make rpm, as Go names them.
ARCHES      ?= amd64 arm64 s390x ppc64le
ARCH        ?= $(shell $(GO) env GOARCH)
# Where make dist, make deb and make rpm put what they make.
DIST        ?= dist
COMPAT_NAMES = smcd smcss smc_pnet smc_run smc_rnics smc_chk smc_dbg
PLOTS        = internal/testing/bench/plots
# Tests with Linux kernels in QEMU that run at the same time.
GUESTS      ?= 2
# What runs the tests: internal/testing/plan/parts.go has the steps. Without cgo, as most of what it runs: packages are
# compiled once.
PLAN         = env CGO_ENABLED=0 $(GO) run -buildvcs=false ./internal/testing/plan -go '$(GO)' -seeds '$(SIMSEEDS)' -guests '$(GUESTS)' $(if $(RUN),-run '$(RUN)')
SOAK         = $(GO) run -buildvcs=false ./internal/testing/soak
say          = @printf '==> %s\n'

.PHONY: all help build install uninstall deb rpm dist test gate gate-fresh test-all results timing lint plant fuzz soak connections open flood rounds repeat resets faults field test-suites services suite-tools mutants bench bench-plots bench-rdma demo recording dashboard guest generate test-tools test-tools-all bench-tools clean

all: build

help:
	@printf '%s\n' \
	  'build      bin/smcr, static' \
	  'install    PREFIX=$(PREFIX) DESTDIR= COMPAT=yes|no' \
	  'uninstall  the inverse, same variables' \
	  'deb, rpm   a package for ARCH=$(ARCH) in $(DIST)' \
	  'dist       archives for $(ARCHES) in $(DIST),' \
	  '           with checksums and bills of materials (CycloneDX)' \
	  'test       the short forms of the tests of all packages' \
	  'gate       is main broken? test, lint, one end-to-end test for each feature,' \
	  '           a Linux kernel, some seeds; gate-fresh: in a new clone, nothing built before,' \
	  '           beside LOAD=$(LOAD) busy loops' \
	  'test-all   everything, in parts; PART=race|e2e|adversary|packages|kernel|long|sim|cross|modules' \
	  '           runs one, RUN=regexp chooses tests, AGAIN=-again repeats what was green' \
	  'results    the table of the parts: what was run, when, with which result' \
	  'timing     the tests that measure time' \
	  'repeat     each test of PKG that matches RUN, TIMES=$(TIMES) times beside LOAD=$(LOAD) busy loops;' \
	  '           without both: all system tests of the gate' \
	  'lint       gofmt, go vet, staticcheck, generated files' \
	  'fuzz       each fuzz target for FUZZTIME=$(FUZZTIME); PKG=./userstack/wire selects' \
	  'plant      bugs planted in the stack: the simulation finds each; BUG=regexp selects' \
	  'soak       TIME=$(TIME): all kinds of traffic with faults at random times;' \
	  '           SEEDS=N: so many seeds of the simulation instead, from FIRST=1 on' \
	  'connections N=$(N) connections opened and closed through one stack' \
	  'open       10,000 connections open at the same time' \
	  'flood      FLOODTIME=$(FLOODTIME) of each kind of flood beside connections of others;' \
	  '           SOAKFLAGS=-table prints losses and delays of these' \
	  'rounds     what comes and goes, round after round, and what a stack has after each' \
	  'resets     RESETS=$(RESETS) connections reset by peers in the middle of the handshake' \
	  'faults     each fault of calls, netdevs and disks, for more than an hour: docs/reliability.md;' \
	  '           RUN=regexp selects tests' \
	  'field      situations from the field in each mode, compared with TCP;' \
	  '           FIELDFLAGS="-cases oneshot -modes smc,bare -v" selects' \
	  'services   smcr service with eight units of Debian, by a real systemd; SERVICEFLAGS=' \
	  'test-suites suites of others beneath smcr run, test by test as over TCP;' \
	  '           SUITEFLAGS="-suites cpython,go -modes loop -jobs test_socket", -list lists' \
	  'suite-tools install what they need (Debian, root)' \
	  'mutants    PKG="./userstack/wire …": changes of the code that its tests do not notice;' \
	  '           SAMPLE=n tries n of each package, MUTANTFLAGS="-judge PACKAGE" and others' \
	  'bench      SMC-R in user space beside kernel TCP, then the listings;' \
	  '           BENCHFLAGS="-rows iperf3 -rounds 2 -time 1s" for a quick look,' \
  '           BENCHFLAGS="-against FILE" in turn with another build of smcr' \
	  'bench-plots docs/performance.md: table and plots of the newest result' \
	  'bench-rdma software RoCE in user space beside that of the kernel, in QEMU' \
	  'demo       two hosts, a web server, a client, what crossed the wire' \
	  'recording  docs/demo.svg: make demo, drawn as it prints' \
	  'dashboard  docs/dashboard.png: the dashboard for Grafana, with data of 7 minutes' \
	  'guest      a shell in Linux 6.12 with SMC and soft-RoCE, in QEMU' \
	  'generate   man pages, completions and other generated files' \
	  'test-tools install what the tests need (Debian, root); bench-tools: the bench' \
	  'clean      remove bin and dist'

build:
	$(say) 'build bin/smcr$(VERSION:%= (%))'
	@$(GOBUILD) -o bin/smcr ./cmd/smcr

install: build
	$(say) 'install to $(DESTDIR)$(PREFIX)'
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' COMPAT='$(COMPAT)' scripts/install install $(COMPAT_NAMES)

uninstall:
	$(say) 'uninstall from $(DESTDIR)$(PREFIX)'
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' COMPAT='$(COMPAT)' scripts/install uninstall $(COMPAT_NAMES)

# The version of a package is that of the commit: scripts/package.
deb rpm dist:
	$(say) '$@: version $(shell scripts/package version)'
	@GO='$(GO)' GOBUILD="$(GOBUILD)" ARCH='$(ARCH)' ARCHES='$(ARCHES)' DIST='$(DIST)' scripts/package $@ $(COMPAT_NAMES)

# What each of them does: internal/testing/plan.
test gate lint results:
	@$(PLAN) $@

gate-fresh:
	@GO='$(GO)' scripts/gate-fresh '$(LOAD)'

test-all:
	@$(PLAN) $(AGAIN) $(or $(PART),all)

timing:
	$(say) 'tests that measure time; load: '"$$(cut -d' ' -f1-3 /proc/loadavg)"
	@env SMCR_TIMING=1 $(GO) test -count=1 -v -p 1 -run '^TestTiming' $(or $(PKG),$$(grep -rl --include='*_test.go' '^func TestTiming' . | xargs -n1 dirname | sort -u))
	$(say) 'load at the end: '"$$(cut -d' ' -f1-3 /proc/loadavg)"

fuzz:
	@GO='$(GO)' scripts/fuzz '$(FUZZTIME)' $(or $(PKG),./...)

plant:
	$(say) 'bugs planted in the stack'
	@$(GO) test -count=1 -v -timeout 0 -run 'TestPlantedBugs$$' ./userstack/stacktest -sim.plant='$(or $(BUG),.)'

resets:
	$(say) '$(RESETS) connections reset in the middle of the handshake'
	@SMCR_E2E_RESETS='$(RESETS)' $(GO) test -count=1 -v -timeout 2h -run 'TestResets$$' ./internal/testing/e2e

field: build
	$(say) 'situations from the field, in each mode as over TCP'
	@$(GO) run -buildvcs=false ./internal/testing/field/smcrfield -smcr bin/smcr $(FIELDFLAGS)

# Sources and builds are in ~/.cache/smcr/suites, the output of the jobs in bin/suites.
test-suites: build
	$(say) 'test suites of others, over TCP and beneath smcr run'
	@$(GO) run -buildvcs=false ./internal/testing/suites/smcrsuites -smcr bin/smcr $(SUITEFLAGS)

# Eight units of Debian and smcr service, with a real systemd. Writes the table of docs/tasks.md with
# SERVICEFLAGS=-update.
services:
	@scripts/setup-test-tools test-all
	@env SMCR_TEST_ALL_SERVICES=1 $(GO) test -buildvcs=false -timeout $(TESTTIMEOUT) -v -run '^TestServices$$' ./internal/testing/packages $(SERVICEFLAGS)

suite-tools:
	$(say) 'programs and packages that the suites of others use'
	@scripts/setup-test-tools suites

# The rows of the table are in bin/faults.jsonl.
faults:
	$(say) 'faults under traffic'
	@$(if $(RUN),$(GO) test -list '$(firstword $(subst /, ,$(RUN)))' ./internal/testing/faults | grep -q '^Test' || { echo 'no test of ./internal/testing/faults matches $(RUN)'; exit 1; })
	@mkdir -p bin && rm -f bin/faults.jsonl
	@SMCR_FAULTS=full SMCR_FAULTS_RESULTS='$(CURDIR)/bin/faults.jsonl' $(GO) test -count=1 -v -timeout 0 $(if $(RUN),-run '$(RUN)') ./internal/testing/faults
	@$(if $(RUN),,SMCR_FAULTS_RESULTS='$(CURDIR)/bin/faults.jsonl' $(GO) test -count=1 -v -timeout 0 -run 'TestNetem$$|TestClock$$' ./internal/testing/interop)
	@$(if $(RUN),,$(GO) run -buildvcs=false ./internal/testing/faults/table bin/faults.jsonl docs/reliability.md)

soak:
ifdef SEEDS
	@GO='$(GO)' scripts/simulate '$(SEEDS)' '$(or $(FIRST),1)'
else
	$(say) 'all kinds of traffic with faults for $(TIME)'
	@$(SOAK) -time '$(TIME)' $(SOAKFLAGS)
endif

connections:
	$(say) '$(N) connections opened and closed through one stack'
	@$(SOAK) connections -n '$(N)' $(SOAKFLAGS)

open:
	$(say) 'connections open at the same time'
	@$(SOAK) open $(SOAKFLAGS)

flood:
	$(say) 'floods of $(FLOODTIME) each'
	@$(SOAK) flood -time '$(FLOODTIME)' $(SOAKFLAGS)

rounds:
	$(say) 'what comes and goes, round after round'
	@$(SOAK) rounds $(SOAKFLAGS)

repeat:
	@$(PLAN) repeat -go '$(GO)' -count '$(TIMES)' -load '$(LOAD)' $(if $(RUN)$(PKG),-run '$(RUN)' $(if $(PKG),-pkg '$(PKG)'),-gate) $(REPEATFLAGS)

mutants:
	$(say) 'mutants of $(PKG)'
	@$(GO) run -buildvcs=false ./internal/testing/mutants $(if $(SAMPLE),-sample '$(SAMPLE)') $(if $(SEED),-seed '$(SEED)') $(MUTANTFLAGS) $(or $(PKG),$(error PKG= is missing))

bench: build
	$(say) 'benchmark: SMC-R in user space beside kernel TCP'
	@scripts/setup-test-tools bench
	@$(GO) run -buildvcs=false ./internal/testing/bench/smcrbench -smcr bin/smcr $(BENCHFLAGS)
	$(say) 'benchmark: listings of 1 to 100,000 rows'
	@$(GO) run -buildvcs=false ./internal/testing/bench/listbench -smcr bin/smcr $(LISTFLAGS)

# A module of its own, for its libraries: nothing else needs them.
bench-plots:
	$(say) 'plots and table of the newest result'
	@cd $(PLOTS) && $(GO) run -buildvcs=false . -results '$(CURDIR)/bench/results' \
	  -document '$(CURDIR)/docs/performance.md' -svg '$(CURDIR)/docs/performance'

bench-rdma: build
	$(say) 'benchmark: software RoCE in user space beside that of the kernel'
	@scripts/setup-test-tools bench-rdma
	@$(GO) run -buildvcs=false ./internal/testing/bench/rdmabench -smcr bin/smcr $(RDMAFLAGS)

demo:
	@scripts/setup-test-tools demo
	$(say) 'build smcr, a web server, a web client and the demo into bin/demo'
	@mkdir -p bin/demo
	@scripts/progress $(GOBUILD) -v -o bin/demo/ ./cmd/smcr ./examples/demo ./examples/demo/webserver ./examples/demo/webclient
	$(say) 'demo'
	@bin/demo/demo -smcr bin/demo/smcr -programs bin/demo $(DEMOFLAGS)

recording:
	@scripts/setup-test-tools demo
	@$(GO) run -buildvcs=false ./internal/testing/recording -title 'make demo' -o docs/demo.svg -- $(MAKE) --no-print-directory demo

# The modules of npm take 500 MB in ~/.cache/smcr/dashboard.
dashboard:
	@scripts/setup-test-tools dashboard
	@mkdir -p bin
	$(say) 'two hosts, traffic and faults'
	@SMCR_E2E_DASHBOARD='$(CURDIR)/bin/dashboard.json' $(GO) test -count=1 -v -timeout 20m -run 'TestDashboard$$' ./internal/testing/e2e
	$(say) 'the panels of Grafana with these data'
	@$(GO) run -buildvcs=false ./internal/testing/dashboard -data bin/dashboard.json -o docs/dashboard.png

guest:
	@scripts/setup-test-tools guest
	@$(GO) run -buildvcs=false ./internal/testing/guest/shell $(GUESTFLAGS)

generate:
	$(say) 'go generate'
	@$(GO) generate ./...

test-tools:
	$(say) 'programs that the tests use'
	@scripts/setup-test-tools test

test-tools-all:
	$(say) 'programs that the tests use, those with kernels too'
	@scripts/setup-test-tools test-all

bench-tools:
	$(say) 'programs that the bench uses'
	@scripts/setup-test-tools bench

clean:
	$(say) 'clean'
	@rm -rf bin dist
