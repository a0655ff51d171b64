// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// binDir has the programs, which TestMain builds.
var binDir string

func bin(name string) string { return filepath.Join(binDir, name) }

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if binDir, err = os.MkdirTemp("", "smcr-faults-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	if os.Geteuid() == 0 { // without root every test is skipped
		if err := built.Programs(context.Background(), binDir, "smcr/cmd/smcr", "smcr/internal/testing/programs/checked", "smcr/internal/testing/programs/inject"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

const (
	startTime   = testkind.Patience // until a program has started
	commandTime = testkind.Patience // for one smcr command
	trafficTime = testkind.Patience // for a client, with all its connections
	port        = 7070
)

// lab is two hosts with stacks, and a server on A.
type lab struct {
	*netnstest.Pair
	t      testing.TB
	stacks map[*netnstest.Host]*netnstest.Process
	server *netnstest.Process
	// other is one more host, or the switch between A and B.
	other *netnstest.Host
	// watched are the processes whose descriptors must be given back, by what they are.
	watched map[string]func() (int, error)
	// before has their descriptors when nothing happens.
	before map[string]files
	// mounts is a file with the mount namespace in which commands and clients of host B run,
	// or "" for that of the test.
	mounts string
	seen   int // bytes of the server's log that are in results
	open   int // connections that the server has accepted and not ended
}

// newLab makes the hosts, without stacks.
func newLab(t testing.TB, o netnstest.Options) *lab {
	t.Helper()
	return &lab{Pair: netnstest.New(t, o), t: t, stacks: map[*netnstest.Host]*netnstest.Process{}, watched: map[string]func() (int, error){}}
}

// newServedLab makes the hosts with their stacks and the server, and measures what they have
// when nothing happens.
func newServedLab(t testing.TB) *lab {
	t.Helper()
	l := newLab(t, netnstest.Options{})
	l.serve(l.A)
	l.serve(l.B)
	l.serveTraffic()
	if err := l.healthy(2); err != nil {
		t.Fatal(err)
	}
	l.measure()
	return l
}

// serve starts the stack of a host.
func (l *lab) serve(h *netnstest.Host, args ...string) {
	l.t.Helper()
	l.stack(h, h.Go(l.t, bin("smcr"), append([]string{"serve"}, args...)...))
	pid := l.stacks[h].Pid()
	l.watch("stack of "+l.name(h), func() (int, error) { return pid, nil })
}

// serveInjected starts the stack of a host whose calls can fail.
func (l *lab) serveInjected(h *netnstest.Host, calls string) *injected {
	l.t.Helper()
	i := inject(l.t, h, calls, request{}, bin("smcr"), "serve")
	l.stack(h, i.Process)
	l.watch("stack of "+l.name(h), i.program)
	return i
}

func (l *lab) name(h *netnstest.Host) string {
	return map[*netnstest.Host]string{l.A: "A", l.B: "B"}[h]
}

// stack waits until a stack answers.
func (l *lab) stack(h *netnstest.Host, p *netnstest.Process) {
	l.t.Helper()
	l.stacks[h] = p
	err := netnstest.Until(startTime, func() error {
		if ended(p) {
			return netnstest.Stop(fmt.Errorf("smcr serve ended:\n%s", p.Log()))
		}
		_, err := l.smcr(h, "info")
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func ended(p *netnstest.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// watch adds a process whose descriptors must be given back.
func (l *lab) watch(what string, pid func() (int, error)) { l.watched[what] = pid }

// serverArgs is the command line of the server.
func (l *lab) serverArgs() []string {
	return []string{bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--", bin("checked"), "server", l.address()}
}

func (l *lab) address() string { return net4(l.A, port) }

func net4(h *netnstest.Host, port int) string { return h.Addr() + ":" + strconv.Itoa(port) }

// serveTraffic starts the server on A.
func (l *lab) serveTraffic() {
	l.t.Helper()
	argv := l.serverArgs()
	l.begin(l.A.Go(l.t, argv[0], argv[1:]...))
}

// begin waits until a server listens.
func (l *lab) begin(p *netnstest.Process) {
	l.t.Helper()
	l.server, l.seen, l.open = p, 0, 0
	if err := p.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
}

// smcr runs a command for the stack of a host.
func (l *lab) smcr(h *netnstest.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	argv := l.mounted(h, append([]string{bin("smcr"), "--backend", "user"}, args...))
	return h.Output(ctx, argv[0], argv[1:]...)
}

// mounted returns a command line that runs where the stack of the host has its files.
func (l *lab) mounted(h *netnstest.Host, argv []string) []string {
	if h == l.B && l.mounts != "" {
		return append([]string{"nsenter", "--mount=" + l.mounts, "--"}, argv...)
	}
	return argv
}

// result is what program checked says of a connection.
type result struct {
	Seed            uint64
	Sent, Received  int64
	Error           string
	Corrupted, Hung bool
	Seconds         float64
}

// results reads the lines of program checked.
func results(log string) (list []result) {
	for line := range strings.Lines(log) {
		var r result
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &r) == nil {
			list = append(list, r)
		}
	}
	return list
}

var summaryRE = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP`)

// clientArgs is the command line of a client.
func (l *lab) clientArgs(conns int, args ...string) []string {
	return append([]string{bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--", bin("checked"), "client", l.address(), "-conns", strconv.Itoa(conns), "-limit", HangTime.String()}, args...)
}

// client runs a client on B to its end.
func (l *lab) client(conns int, args ...string) (Row, string) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), trafficTime)
	defer cancel()
	argv := l.mounted(l.B, l.clientArgs(conns, args...))
	cmd := l.B.Command(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return outcome(conns, out.String(), ctx.Err() != nil, err), out.String()
}

// outcome makes a row of the output of a client.
func outcome(conns int, log string, late bool, err error) Row {
	r := Row{Conns: conns}
	list := results(log)
	for _, c := range list {
		r.count(c)
	}
	if missing := conns - len(list); missing > 0 {
		r.Failed += missing
		if late {
			r.Hung += missing
		}
	}
	if m := summaryRE.FindStringSubmatch(log); m != nil {
		r.SMC, _ = strconv.Atoi(m[1])
		r.TCP, _ = strconv.Atoi(m[2])
	}
	// smcr run that cannot run a program must say why.
	if err != nil && !late && !saysWhy(log) {
		r.Hung++
	}
	return r
}

// saysWhy reports whether a program that failed has said why: smcr, the program that it
// runs, or the Go runtime, which needs epoll before the program does anything.
func saysWhy(log string) bool {
	return strings.Contains(log, "smcr: ") || strings.Contains(log, "checked: ") ||
		strings.Contains(log, "runtime: epoll") || strings.Contains(log, "runtime: eventfd")
}

// count adds what became of a connection.
func (r *Row) count(c result) {
	r.Bytes += c.Received
	if c.Error != "" {
		r.Failed++
	}
	if c.Corrupted {
		r.Corrupted++
	}
	if c.Hung {
		r.Hung++
	}
}

// serverSaw reads what the server says of connections that have ended, and waits until all
// have ended.
func (l *lab) serverSaw(r *Row) error {
	return netnstest.Until(SettleTime+HangTime, func() error {
		log := l.server.Log()
		whole := strings.LastIndexByte(log, '\n') + 1
		part := log[l.seen:whole]
		l.seen = whole
		l.open += strings.Count(part, "accepted\n")
		for _, c := range results(part) {
			l.open--
			r.Bytes += c.Received
			if c.Corrupted {
				r.Corrupted++
				l.t.Logf("the server: %+v", c)
			}
			if c.Hung {
				r.Hung++
				l.t.Logf("the server: %+v", c)
			}
		}
		if l.open != 0 {
			return fmt.Errorf("%d connections of the server have not ended", l.open)
		}
		return nil
	})
}

// rows returns the rows of a listing.
func (l *lab) rows(h *netnstest.Host, noun string) ([]map[string]any, error) {
	out, err := l.smcr(h, noun, "list", "--output", "json")
	if err != nil {
		return nil, err
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		return nil, fmt.Errorf("smcr %s list: %w in %q", noun, err, out)
	}
	return rows, nil
}

// noConnections waits until the stacks list no connection.
func (l *lab) noConnections(hosts ...*netnstest.Host) error {
	return netnstest.Until(SettleTime, func() error {
		for _, h := range hosts {
			conns, err := l.rows(h, "connection")
			if err != nil {
				return err
			}
			if len(conns) > 0 {
				return fmt.Errorf("connections on %s: %v", l.name(h), conns)
			}
			groups, err := l.rows(h, "linkgroup")
			if err != nil {
				return err
			}
			for _, g := range groups {
				if n, _ := g["conns"].(float64); n > 0 {
					return fmt.Errorf("link groups on %s: %v", l.name(h), groups)
				}
			}
		}
		return nil
	})
}

// files counts the descriptors of a process by what they refer to.
type files map[string]int

var numbers = regexp.MustCompile(`[0-9]+`)

func filesOf(pid int) (files, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	f := files{}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		// Pools of memory keep a descriptor of the page map.
		if err == nil && !strings.HasSuffix(to, "/pagemap") {
			f[numbers.ReplaceAllString(to, "N")]++
		}
	}
	return f, nil
}

// more returns which descriptors there are more of than before.
func (f files) more(before files) []string {
	var list []string
	for _, to := range slices.Sorted(maps.Keys(f)) {
		if f[to] > before[to] {
			list = append(list, fmt.Sprintf("%d more of %s", f[to]-before[to], to))
		}
	}
	return list
}

// measure notes the descriptors of the watched processes, once they do not change.
func (l *lab) measure() {
	l.t.Helper()
	for same := 0; same < 3; {
		now := map[string]files{}
		for what, pid := range l.watched {
			n, err := pid()
			if err != nil {
				l.t.Fatalf("%s: %v", what, err)
			}
			if now[what], err = filesOf(n); err != nil {
				l.t.Fatalf("%s: %v", what, err)
			}
		}
		if maps.EqualFunc(now, l.before, func(a, b files) bool { return maps.Equal(a, b) }) {
			same++
		} else {
			same = 0
		}
		l.before = now
		time.Sleep(100 * time.Millisecond) // Real time: nothing changes in it.
	}
}

// givenBack waits until the watched processes have no more descriptors than before.
func (l *lab) givenBack() error {
	return netnstest.Until(SettleTime, func() error {
		for what, pid := range l.watched {
			n, err := pid()
			if err != nil {
				return err
			}
			now, err := filesOf(n)
			if err != nil {
				return err
			}
			if more := now.more(l.before[what]); len(more) > 0 {
				return fmt.Errorf("%s: %s", what, strings.Join(more, ", "))
			}
		}
		return nil
	})
}

// healthy makes connections without a fault, until all are SMC-R and in order.
func (l *lab) healthy(conns int) error {
	return netnstest.Until(BackTime, func() error {
		r, log := l.client(conns, "-bytes", "50000")
		if !r.Good() {
			return netnstest.Stop(fmt.Errorf("after the fault: %+v\n%s", r, log))
		}
		if r.Failed > 0 || r.SMC != conns || r.TCP > 0 {
			return fmt.Errorf("after the fault: %+v\n%s", r, log)
		}
		return nil
	})
}

// settle checks that after a fault all is as before, and counts in r what is not.
func (l *lab) settle(r *Row) error {
	for what, p := range map[string]*netnstest.Process{"stack of A": l.stacks[l.A], "stack of B": l.stacks[l.B], "the server": l.server} {
		if ended(p) {
			r.Failed++
			l.t.Fatalf("%s has ended:\n%s", what, p.Log())
		}
	}
	if err := l.serverSaw(r); err != nil {
		r.Hung++
		return err
	}
	var errs []error
	if err := l.healthy(2); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(l.serverSaw(r), l.noConnections(l.A, l.B), l.givenBack()); err != nil {
		errs = append(errs, err)
		l.measure() // so that the next fault is not blamed for it
	}
	if len(errs) > 0 {
		r.Leaked++
	}
	return errors.Join(errs...)
}

// finish writes the row of a fault, and fails the test if something happened that must not.
func finish(t testing.TB, r Row) {
	t.Helper()
	t.Logf("%s, %s: %d runs, %d connections (%d SMC-R, %d TCP, %d failed), %d bytes", r.Fault, r.Traffic, r.Runs, r.Conns, r.SMC, r.TCP, r.Failed, r.Bytes)
	if !r.Good() {
		t.Errorf("%s, %s: %d corrupted, %d hung, %d leaked", r.Fault, r.Traffic, r.Corrupted, r.Hung, r.Leaked)
	}
	if err := r.Write(); err != nil {
		t.Error(err)
	}
}
