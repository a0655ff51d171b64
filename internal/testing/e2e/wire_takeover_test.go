// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// wantSMC waits until the connections over SMC-R of a host are so many, by the stack that has them. That which is the stack
// now may have more.
func (l *lab) wantSMC(h *netnstest.Host, want map[string]int) {
	l.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		var rows []struct{ Stack, Mode string }
		out := l.smcr(h, "--backend", "user", "connection", "list", "-o", "json")
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			return err
		}
		got := map[string]int{}
		for _, r := range rows {
			if r.Mode == "SMCR" {
				got[r.Stack]++
			}
		}
		now := got["user"]
		got["user"] = min(now, want["user"])
		if !maps.Equal(got, want) {
			return fmt.Errorf("%s: connections over SMC-R %v (the stack: %d), want %v:\n%s", h.Name, got, now, want, out)
		}
		return nil
	}); err != nil {
		l.t.Error(err)
	}
}

// wireDevices returns the devices of the stacks of a host.
func (l *lab) wireDevices(h *netnstest.Host) (names []string) {
	l.t.Helper()
	out, err := h.Output(l.t.Context(), "ip", "-o", "link", "show")
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], ":")
		if name, _, _ = strings.Cut(name, "@"); strings.HasPrefix(name, "smcr") {
			names = append(names, name)
		}
	}
	return names
}

// TestTakeover replaces the stacks of both hosts, twice, while programs that keep their sockets transfer data. Their
// connections go on with the stack that has them, and new ones, of the same programs and of others, use the new stack. None
// fails that is made at any time.
// Each old stack ends after its last connection, and takes its devices with it.
func TestTakeover(t *testing.T) {
	const each, takeovers = 2, 2
	l := newLab(t, "/usr/bin/python3")
	hosts := []*netnstest.Host{l.A, l.B}
	stacks := map[*netnstest.Host][]*netnstest.Process{}
	for _, h := range hosts {
		stacks[h] = append(stacks[h], l.serve(h))
	}
	run := append(inCgroup(session(t)), bin("smcr"), "run", "--mode", "user", "--no-adapt", "--", "/usr/bin/python3", "-u", "-c")
	server := l.A.Go(t, run[0], append(slices.Clone(run[1:]), blockEcho, l.A.Addr())...)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	client := func(argv ...string) (p *netnstest.Process, more func()) {
		t.Helper()
		cmd := l.B.Command(t.Context(), run[0], append(slices.Clone(run[1:]), argv...)...)
		in, err := cmd.StdinPipe() // at its end they end
		if err != nil {
			t.Fatal(err)
		}
		return l.B.GoCmd(t, cmd), func() { _, _ = in.Write([]byte("\n")) }
	}
	holds := func() (p *netnstest.Process, more func()) {
		t.Helper()
		p, more = client(keeper, l.A.Addr(), strconv.Itoa(each))
		wantLines(t, p, "made", each)
		return p, more
	}
	l.smcr(l.A, "--backend", "user", "pnet", "add", "NET1", "--netdev", "eth0")
	l.smcr(l.A, "--backend", "user", "ueid", "add", "SMCV2-TAKEOVER")
	first, more := holds()
	sent := l.received(l.A)
	want := map[string]int{"user": each}
	for _, h := range hosts {
		l.wantSMC(h, want)
	}
	path := filepath.Join(t.TempDir(), "loader")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	load, _ := client(loader, l.A.Addr(), path, "2")
	if err := load.WaitOutput("loading", startTime); err != nil {
		t.Fatal(err, load.Log())
	}
	others := []*netnstest.Process{}
	for n := range takeovers {
		for _, h := range hosts {
			stacks[h] = append(stacks[h], l.takeOver(h))
			wantLines(t, stacks[h][n], saysOver, 1)
		}
		// Nothing is lost of the configuration and of the statistics.
		if now := l.received(l.A); now < sent {
			t.Errorf("takeover %d: %d bytes received, %d before", n, now, sent)
		} else {
			sent = now
		}
		if out := l.smcr(l.A, "--backend", "user", "pnet", "list"); !strings.Contains(out, "NET1") {
			t.Errorf("takeover %d: the pnetid is lost: %s", n, out)
		}
		if out := l.smcr(l.A, "--backend", "user", "ueid", "list"); !strings.Contains(out, "SMCV2-TAKEOVER") {
			t.Errorf("takeover %d: the enterprise ID is lost: %s", n, out)
		}
		want["ending-"+strconv.Itoa(n)] = want["user"]
		more()
		wantLines(t, first, "made", (n+2)*each)
		other, _ := holds()
		others = append(others, other)
		want["user"] = 2 * each
		for _, h := range hosts {
			l.wantSMC(h, want)
			l.wantListed(h, n+1)
		}
	}
	// All connections have gone on.
	more()
	wantLines(t, first, "made", (takeovers+2)*each)
	before := exchanged(t, first)
	more()
	wantLines(t, first, "made", (takeovers+3)*each)
	for i, n := range exchanged(t, first) {
		if i < len(before) && n <= before[i] {
			t.Errorf("connection %d has stopped after %d exchanges", i, n)
		}
	}
	load.Kill()
	all := &attempts{file: file, in: bufio.NewReader(file)}
	all.read(t)
	for _, x := range all.all {
		if x.how != "ok" {
			t.Errorf("a new connection failed: %+v", x)
		}
	}
	if t.Logf("%d new connections meanwhile", len(all.all)); len(all.all) == 0 {
		t.Error("no connection was made meanwhile")
	}
	for _, p := range append(others, first) {
		if strings.Contains(p.Log(), "FAILED") {
			t.Errorf("a connection has ended: %s", lastLine(p.Log(), "FAILED"))
		}
		p.Kill()
	}
	for _, h := range hosts {
		for n, p := range stacks[h][:takeovers] {
			if err := p.Wait(endTime); err != nil {
				t.Errorf("%s: stack %d: %v\n%s", h.Name, n, err, p.Log())
			}
		}
		if names := l.wireDevices(h); len(names) != 2 {
			t.Errorf("%s has the devices %q, want two", h.Name, names)
		}
		if names := l.placeOf(h); countPrefix(names, "ending-") != 0 || countPrefix(names, "part-") != 1 {
			t.Errorf("%s: left in the place of the stack: %q", h.Name, names)
		}
	}
	// The new stacks have the programs.
	last, _ := holds()
	for _, h := range hosts {
		l.wantSMC(h, map[string]int{"user": each})
	}
	last.Kill()
	server.Kill()
	l.wantNoRuns()
	if t.Failed() {
		for _, h := range hosts {
			for n, p := range stacks[h] {
				t.Logf("%s: stack %d:\n%s", h.Name, n, p.Log())
			}
		}
	}
}

// plainServer ends each connection. Nobody announces for it.
const plainServer = `
import socket, sys
l = socket.create_server((sys.argv[1], 7600))
print('listening', flush=True)
while True:
    l.accept()[0].close()
`

// TestTakeoverCounts: what stacks count goes on with those that take over from them, also that of connections that were never
// taken.
func TestTakeoverCounts(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "tshark")
	l.serve(l.A)
	l.serve(l.B)
	run := append(inCgroup(session(t)), bin("smcr"), "run", "--mode", "user", "--")
	server := l.A.Go(t, run[0], append(slices.Clone(run[1:]), "/usr/bin/python3", "-u", "-c", wireServer, l.A.Addr())...)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	l.wireHalf(true, run...)
	plain := l.A.Go(t, "/usr/bin/python3", "-u", "-c", plainServer, l.A.Addr())
	if err := plain.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, plain.Log())
	}
	counted := func(want int) {
		t.Helper()
		out := l.smcr(l.B, "--backend", "user", "stats", "show")
		if m := fallbacksRE.FindStringSubmatch(out); m == nil || m[1] != strconv.Itoa(want) {
			t.Errorf("want %d connections that became TCP:\n%s", want, out)
		}
	}
	for n := range 2 {
		argv := append(slices.Clone(run), "/usr/bin/python3", "-c", "import socket; socket.create_connection(('"+l.A.Addr()+"', 7600)).recv(1)")
		if _, err := l.B.Output(t.Context(), argv[0], argv[1:]...); err != nil {
			t.Error(err)
		}
		counted(n + 1)
		l.takeOver(l.B)
		counted(n + 1)
	}
	l.wireHalf(true, run...)
	counted(2)
	server.Kill()
	plain.Kill()
	l.wantNoRuns()
}

// TestTakeoverFails has processes that do not take over, because their configuration has an error, their release is another one,
// their user has no right to, or they are killed: the stack that runs takes connections as before, and nothing of the others stays.
func TestTakeoverFails(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "tshark")
	old := l.serve(l.A)
	l.serve(l.B)
	run := append(inCgroup(session(t)), bin("smcr"), "run", "--mode", "user", "--")
	server := l.A.Go(t, run[0], append(slices.Clone(run[1:]), "/usr/bin/python3", "-u", "-c", wireServer, l.A.Addr())...)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	dir := t.TempDir()
	broken, other := filepath.Join(dir, "broken.yaml"), filepath.Join(dir, "smcr")
	if err := os.WriteFile(broken, []byte("nothing: valid\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags", "-X smcr/userstack/internal/takeover.version=9", "-o", other, "smcr/cmd/smcr").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := l.placeOf(l.A)
	for _, test := range []struct {
		name, says string
		argv       []string
	}{
		{"broken configuration", "broken.yaml", []string{bin("smcr"), "serve", "--takeover", "--config", broken}},
		{"other release", "stop the old one first", []string{other, "serve", "--takeover"}},
		{"without the flag", "already running", []string{bin("smcr"), "serve"}},
		{"another user", "", []string{"/usr/bin/setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups", "--inh-caps", "+net_raw,+net_admin,+bpf", "--ambient-caps", "+net_raw,+net_admin,+bpf", bin("smcr"), "serve", "--takeover"}},
	} {
		next := l.A.Go(t, test.argv[0], test.argv[1:]...)
		if err := next.Wait(startTime); err == nil || !strings.Contains(next.Log(), test.says) {
			t.Errorf("%s: %v\n%s", test.name, err, next.Log())
		}
		t.Logf("%s: %s", test.name, strings.TrimSpace(next.Log()))
		if now := l.placeOf(l.A); !slices.Equal(now, before) {
			t.Errorf("%s: in the place of the stack: %q, want %q", test.name, now, before)
		}
		if names := l.wireDevices(l.A); len(names) != 2 {
			t.Errorf("%s: the devices are %q, want two", test.name, names)
		}
		l.wireHalf(true, run...)
	}
	// One is killed as soon as it has its devices.
	next := l.A.Go(t, bin("smcr"), "serve", "--takeover", "--no-default-eid")
	if err := netnstest.Until(startTime, func() error {
		if names := l.wireDevices(l.A); len(names) < 4 {
			return fmt.Errorf("the devices are %q", names)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	next.Kill()
	if strings.Contains(old.Log(), saysOver) { // it was too late
		l.serve(l.A)
		server.Kill()
		l.wantNoRuns()
		return
	}
	if err := netnstest.Until(settleTime, func() error {
		out, err := l.A.Output(t.Context(), "tc", "filter", "show", "dev", l.A.Links[0].Name, "ingress")
		if n := strings.Count(out, "smcr_arriving"); err != nil || n != 1 || len(l.wireDevices(l.A)) != 2 {
			return fmt.Errorf("%d filters, %v, %q", n, err, l.wireDevices(l.A))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	l.wireHalf(true, run...)
	server.Kill()
	l.wantNoRuns()
}
