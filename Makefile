# SPDX-License-Identifier: Apache-2.0
#
# make demo      two hosts, a web server, a client: SMC-R at work (root)
# make test      lint, unit tests, simulation, end-to-end tests: some minutes (root)
# make test-all  the rest: other architectures, Linux kernels in QEMU (root)
# make help      the other targets

GO       ?= go
PREFIX   ?= /usr/local
DESTDIR  ?=
# COMPAT=no installs smcr alone, without the programs of smc-tools' names.
COMPAT   ?= yes
# What the program tells besides the release in cmd/smcr/version.go.
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)

# Seeds of the simulation that make test tries.
SIMSEEDS    ?= 3000
# Time for each fuzz target, for the soak, and for the whole of go test.
FUZZTIME    ?= 30s
SOAKTIME    ?= 30m
TESTTIMEOUT ?= 25m
# Connections that make resets has reset.
RESETS      ?= 200000

GOBUILD      = CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -ldflags '-s -w -X main.revision=$(VERSION)'
STATICCHECK  = $(GO) tool -modfile=tools/go.mod staticcheck
COMPAT_NAMES = smcd smcss smc_pnet smc_run smc_rnics smc_chk smc_dbg
PLOTS        = internal/testing/bench/plots
# The end-to-end tests measure time and run alone, after all other packages.
E2E          = ./internal/testing/e2e/...
# Packages that boot Linux kernels: one at a time, with so many of their tests
# side by side, or they starve each other. Those of PARTLY have other tests too,
# which make test runs.
GUESTS      ?= 2
KERNEL       = ./internal/testing/guest/... ./internal/testing/guesttest/... ./internal/testing/interop/... ./internal/testing/rdmainterop
PARTLY       = ./internal/cli ./internal/run
say          = @printf '==> %s\n'

.PHONY: all help build install uninstall test test-all lint cross race sim plant kernel e2e fuzz soak resets bench bench-plots bench-rdma demo guest generate test-tools test-tools-all bench-tools clean

all: build

help:
	@printf '%s\n' \
	  'build      bin/smcr, static' \
	  'install    PREFIX=$(PREFIX) DESTDIR= COMPAT=yes|no' \
	  'uninstall  the inverse, same variables' \
	  'test       tools, lint, tests with the race detector, simulation, end-to-end' \
  'test-all   what test leaves out: other architectures, Linux kernels in QEMU' \
	  'lint       gofmt, go vet, staticcheck, generated files' \
	  'cross      build and vet for arm64 and s390x' \
	  'race       unit tests only, race detector on' \
	  'kernel     tests against Linux kernels in QEMU, GUESTS=$(GUESTS) at once' \
	  'e2e        end-to-end tests only; RUN=regexp selects' \
	  'fuzz       each fuzz target for FUZZTIME=$(FUZZTIME); PKG=./userstack/wire selects' \
	  'sim        $(SIMSEEDS) seeds of the simulation of whole stacks' \
	  'plant      bugs planted in the stack: the simulation finds each; BUG=regexp selects' \
	  'soak       SEEDS=N: so many seeds of the simulation, from FIRST=1 on; else' \
	  '           all tests, shuffled, again and again for SOAKTIME=$(SOAKTIME)' \
	  'resets     RESETS=$(RESETS) connections reset by peers in the middle of the handshake' \
	  'bench      SMC-R in user space beside kernel TCP, then the listings;' \
	  '           BENCHFLAGS="-rows iperf3 -rounds 2 -time 1s" for a quick look' \
	  'bench-plots docs/performance.md: table and plots of the newest result' \
	  'bench-rdma software RoCE in user space beside that of the kernel, in QEMU' \
	  'demo       two hosts, a web server, a client, what crossed the wire' \
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

test: test-tools lint race sim e2e

test-all: test-tools-all cross kernel

lint:
	$(say) 'gofmt'
	@out=$$(gofmt -l $$(find . -name '*.go' -not -path './.git/*')); if [ -n "$$out" ]; then \
	  printf 'not formatted (run gofmt -w):\n%s\n' "$$out" >&2; exit 1; fi
	$(say) 'go vet'
	@$(GO) vet ./...
	$(say) 'staticcheck'
	@$(STATICCHECK) ./...
	$(say) 'go vet, staticcheck and tests of $(PLOTS)'
	@cd $(PLOTS) && $(GO) vet ./... && $(GO) tool -modfile=$(CURDIR)/tools/go.mod staticcheck ./... && $(GO) test ./...
	$(say) 'generated files'
	@scripts/check-generated

cross:
	@for arch in arm64 s390x; do \
	  printf '==> build and vet for linux/%s\n' $$arch; \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -buildvcs=false -o /dev/null ./... && \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) vet ./... || exit 1; \
	done

race:
	$(say) 'go test -race, without kernels in QEMU and the end-to-end tests'
	@pkgs=$$($(GO) list ./... | grep -v -e '/internal/testing/e2e' $$($(GO) list $(KERNEL) | sed 's/^/-e ^/;s/$$/$$/')) && \
	  CGO_ENABLED=1 $(GO) test -race -short -shuffle=on -timeout $(TESTTIMEOUT) $$pkgs

kernel:
	$(say) 'go test -race, with real Linux kernels in QEMU'
	@CGO_ENABLED=1 $(GO) test -race -p 1 -parallel $(GUESTS) -timeout $(TESTTIMEOUT) $(KERNEL) $(PARTLY)

e2e:
	$(say) 'go test, end-to-end: unmodified programs on two hosts'
	@CGO_ENABLED=1 $(GO) test -race -shuffle=on -count=1 -timeout $(TESTTIMEOUT) $(if $(RUN),-v -run '$(RUN)') $(E2E)

fuzz:
	@GO='$(GO)' scripts/fuzz '$(FUZZTIME)' $(or $(PKG),./...)

sim:
	$(say) 'simulation of whole stacks, $(SIMSEEDS) seeds'
	@GO='$(GO)' scripts/simulate '$(SIMSEEDS)'

plant:
	$(say) 'bugs planted in the stack'
	@$(GO) test -count=1 -v -timeout 0 -run 'TestPlantedBugs$$' ./userstack -sim.plant='$(or $(BUG),.)'

resets:
	$(say) '$(RESETS) connections reset in the middle of the handshake'
	@SMCR_E2E_RESETS='$(RESETS)' $(GO) test -count=1 -v -timeout 2h -run 'TestResets$$' ./internal/testing/e2e

soak:
ifdef SEEDS
	@GO='$(GO)' scripts/simulate '$(SEEDS)' '$(or $(FIRST),1)'
else
	@GO='$(GO)' scripts/soak '$(SOAKTIME)' $(or $(PKG),./...)
endif

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

demo: build
	@scripts/setup-test-tools demo
	$(say) 'demo'
	@$(GO) run -buildvcs=false ./examples/demo -smcr bin/smcr $(DEMOFLAGS)

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
