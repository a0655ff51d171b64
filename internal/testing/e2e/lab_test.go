// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// binDir is the directory of the programs under test. TestMain builds them.
var binDir string

// bin returns the path of a built program: smcr, webserver, webclient, probe, resets.
func bin(name string) string { return filepath.Join(binDir, name) }

// raceDetector means that the programs are built with the race detector. It is too slow
// for normal runs.
var raceDetector = os.Getenv("SMCR_E2E_RACE") != ""

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	// A guest, whose processor is emulated, has programs that were built outside of it.
	if binDir = os.Getenv("SMCR_E2E_PROGRAMS"); binDir != "" {
		return m.Run()
	}
	if binDir, err = os.MkdirTemp("", "smcr-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	// Some tests run the programs as a user without privileges.
	if err := os.Chmod(binDir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if os.Geteuid() == 0 { // without root every test is skipped
		build := built.Programs
		if raceDetector {
			build = built.WithRaceDetector
			// A race ends the process, so that the test fails.
			if err := os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		if err := build(context.Background(), binDir,
			"smcr/cmd/smcr", "smcr/examples/demo/webserver", "smcr/examples/demo/webclient", "smcr/internal/testing/programs/probe", "smcr/internal/testing/programs/resets", "smcr/internal/testing/programs/hostile", "smcr/internal/testing/programs/forbid", "smcr/internal/testing/programs/container"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// Time limits. Each is many times what an idle machine needs.
const (
	startTime   = testkind.Patience // until a server listens
	commandTime = testkind.Patience // for one smcr command
	endTime     = testkind.Patience // until a program ends after a signal
	settleTime  = testkind.Patience // until connections that have ended are not listed any more
)

// lab is two hosts without a running stack.
type lab struct {
	*netnstest.Pair
	t    testing.TB
	bare bool // programs run as they are: the stacks take the connections of all
}

func newLab(t testing.TB, tools ...string) *lab {
	t.Helper()
	netnstest.Require(t, append([]string{"tcpdump", "nsenter"}, tools...)...)
	l := &lab{Pair: netnstest.New(t, netnstest.Options{}), t: t}
	t.Cleanup(func() {
		for _, h := range []*netnstest.Host{l.A, l.B} {
			l.stackLog(h)
		}
	})
	return l
}

// stackLog logs, if the test failed, the log of a stack that was started on demand. It
// removes the log files: no other stack will use their names.
func (l *lab) stackLog(h *netnstest.Host) {
	var st unix.Stat_t
	if err := unix.Stat(h.Path(), &st); err != nil {
		return
	}
	logs, _ := filepath.Glob(fmt.Sprintf("/run/smcr/serve-%d-*.log", st.Ino))
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if err == nil && l.t.Failed() && len(b) > 0 {
			l.t.Logf("%s: %s:\n%s", h.Name, name, b[max(0, len(b)-8000):])
		}
		_ = os.Remove(name)
	}
}

var summaryRE = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP`)

// wantSummary checks that the summary of smcr run -v in a log has at least conns
// connections over SMC-R, and none over TCP.
func wantSummary(t testing.TB, log string, conns int) {
	t.Helper()
	m := summaryRE.FindStringSubmatch(log)
	if m == nil {
		t.Errorf("no summary of smcr run -v in\n%s", log)
		return
	}
	smc, _ := strconv.Atoi(m[1])
	if tcp, _ := strconv.Atoi(m[2]); smc < conns || tcp != 0 {
		t.Errorf("smcr run -v tells of %d connections over SMC-R and %d over TCP, want at least %d and none:\n%s", smc, tcp, conns, log)
	}
}

// underArgv is the command line of a program under smcr run. All its connections try SMC-R,
// also short ones.
func underArgv(argv ...string) []string {
	return append([]string{bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--"}, argv...)
}

// under starts the program of underArgv.
func (l *lab) under(h *netnstest.Host, argv ...string) *netnstest.Process {
	l.t.Helper()
	if !l.bare {
		argv = underArgv(argv...)
	}
	return h.Go(l.t, argv[0], argv[1:]...)
}

// serve starts the stack of a host, if a test needs to know its process. It returns when
// the stack answers.
func (l *lab) serve(h *netnstest.Host, args ...string) *netnstest.Process {
	l.t.Helper()
	return l.serveAsIs(h, append([]string{"--no-default-eid"}, args...)...)
}

// serveAsIs is serve for a stack with the default enterprise ID.
func (l *lab) serveAsIs(h *netnstest.Host, args ...string) *netnstest.Process {
	l.t.Helper()
	if l.bare {
		args = append(args, "--cgroup", cgroupTop(l.t))
	}
	p := h.Go(l.t, bin("smcr"), append([]string{"serve"}, args...)...)
	err := netnstest.Until(startTime, func() error {
		select {
		case <-p.Done():
			return netnstest.Stop(fmt.Errorf("smcr serve ended:\n%s", p.Log()))
		default:
		}
		_, err := l.try(h, "--backend", "user", "info")
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return p
}

// cgroupTop returns the cgroup of all programs.
func cgroupTop(t testing.TB) string {
	t.Helper()
	top, err := cgroup.Top()
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// awaitActive waits until the device on each netdev of the hosts is active. A netdev that has just come
// up is reported as up within a second.
func (l *lab) awaitActive(hosts ...*netnstest.Host) {
	l.t.Helper()
	for _, h := range hosts {
		if err := netnstest.Until(startTime, func() error {
			if out := l.smcr(h, "--backend", "user", "device", "list"); strings.Count(out, " ACTIVE") < len(h.Links) {
				return fmt.Errorf("%s: devices are not active:\n%s", h.Name, out)
			}
			return nil
		}); err != nil {
			l.t.Fatal(err)
		}
	}
}

// try runs an smcr command on a host and returns its standard output.
func (l *lab) try(h *netnstest.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	return h.Output(ctx, bin("smcr"), args...)
}

// smcr is try for a command that must succeed.
func (l *lab) smcr(h *netnstest.Host, args ...string) string {
	l.t.Helper()
	out, err := l.try(h, args...)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// rows runs `smcr NOUN list --output json`. Without a stack, it returns no rows.
func (l *lab) rows(h *netnstest.Host, noun string) ([]map[string]any, error) {
	out, err := l.try(h, "--backend", "user", noun, "list", "--output", "json")
	if err != nil {
		if ee, ok := errors.AsType[*exec.ExitError](err); ok && ee.ExitCode() == exitNoBackend {
			return nil, nil
		}
		return nil, err
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		return nil, fmt.Errorf("smcr %s list --output json: %w in %q", noun, err, out)
	}
	return rows, nil
}

// number returns a field of a row.
func number(row map[string]any, field string) (int, error) {
	f, ok := row[field].(float64)
	if !ok {
		return 0, fmt.Errorf("no number %q in %v", field, row)
	}
	return int(f), nil
}

// groupConns returns the number of link groups in the listing of a host, and the sum of
// their connections.
func (l *lab) groupConns(h *netnstest.Host) (groups, conns int, err error) {
	rows, err := l.rows(h, "linkgroup")
	if err != nil {
		return 0, 0, err
	}
	for _, row := range rows {
		n, err := number(row, "conns")
		if err != nil {
			return 0, 0, err
		}
		conns += n
	}
	return len(rows), conns, nil
}

// wantNoConnections waits until neither the link groups nor the connection list of a host
// show a connection.
func (l *lab) wantNoConnections(hosts ...*netnstest.Host) {
	l.t.Helper()
	for _, h := range hosts {
		err := netnstest.Until(settleTime, func() error {
			if _, conns, err := l.groupConns(h); err != nil {
				return netnstest.Stop(err)
			} else if conns != 0 {
				return fmt.Errorf("%d connections in the link groups of %s", conns, h.Name)
			}
			rows, err := l.rows(h, "connection")
			if err != nil {
				return netnstest.Stop(err)
			}
			if len(rows) > 0 {
				return fmt.Errorf("connections listed on %s: %v", h.Name, rows)
			}
			return nil
		})
		if err != nil {
			l.t.Error(err)
		}
	}
}

// stackPids returns the processes of stacks on a host.
func (l *lab) stackPids(h *netnstest.Host) []int {
	l.t.Helper()
	return l.pids(h, func(argv []string) bool {
		return filepath.Base(argv[0]) == "smcr" && slices.Contains(argv[1:], "serve")
	})
}

// programPids returns the processes on a host that run the named program.
func (l *lab) programPids(h *netnstest.Host, program string) []int {
	l.t.Helper()
	return l.pids(h, func(argv []string) bool { return argv[0] == program })
}

func (l *lab) pids(h *netnstest.Host, want func(argv []string) bool) []int {
	l.t.Helper()
	pids, err := h.Pids()
	if err != nil {
		l.t.Fatal(err)
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		argv := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		return err != nil || !want(argv)
	})
}

// descriptors returns how many descriptors a process has open.
func descriptors(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}

// terminate sends SIGTERM to a program and checks that it ends with status 0.
func terminate(t testing.TB, p *netnstest.Process) {
	t.Helper()
	if err := p.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	wantEnd(t, p)
}

// wantEnd waits until a program ends, and checks that its status is 0.
func wantEnd(t testing.TB, p *netnstest.Process) {
	t.Helper()
	if err := p.Wait(endTime); err != nil {
		t.Errorf("%v\n%s", err, p.Log())
	}
}
