// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smcr/internal/place"
	"smcr/internal/testing/netnstest"
)

// session makes a cgroup for programs. Where systemd runs, no program is at the top, where only root with all
// rights may make a cgroup.
func session(t testing.TB) (dir string) {
	t.Helper()
	dir = filepath.Join(cgroupTop(t), fmt.Sprintf("smcr-test-e2e-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netnstest.Until(settleTime, func() error { return os.Remove(dir) }); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// inCgroup is the begin of a command line of a program in a cgroup.
func inCgroup(dir string) []string {
	return []string{"/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir}
}

// wireHalf runs the client of the server wireServer with a command line in front, and checks whether its bytes
// use SMC-R. It returns what is printed to standard error.
func (l *lab) wireHalf(carried bool, argv ...string) (errs string) {
	l.t.Helper()
	w := l.watch()
	argv = append(slices.Clone(argv), "/usr/bin/python3", "-c", wireClient, l.A.Addr(), "half")
	ctx, cancel := context.WithTimeout(l.t.Context(), commandTime)
	defer cancel()
	cmd := l.B.Command(ctx, argv[0], argv[1:]...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || !strings.HasPrefix(stdout.String(), "right\nerror 0") {
		l.t.Errorf("%q: %v, %q, %s", argv, err, &stdout, &stderr)
	}
	if s := w.stop(l.t); (s.roce.Payload > 3<<20) != carried {
		l.t.Errorf("%q: %d bytes over RoCE", argv, s.roce.Payload)
	}
	return stderr.String()
}

// wantNoRuns waits until no cgroup of smcr run of the two hosts is left.
func (l *lab) wantNoRuns() {
	l.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		return filepath.WalkDir(cgroupTop(l.t), func(p string, d fs.DirEntry, err error) error {
			for _, h := range []*netnstest.Host{l.A, l.B} {
				var cookie uint64
				if err := h.Do(func() (err error) { cookie, err = place.Cookie(); return err }); err != nil {
					return err
				}
				if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), fmt.Sprintf("smcr-run-%d-", cookie)) {
					return fmt.Errorf("%s is left", p)
				}
			}
			return nil
		})
	}); err != nil {
		l.t.Error(err)
	}
}

// TestRun has programs of two users under smcr run: the process that is started is the program, in a cgroup of its
// own, which goes with it. Other programs are TCP.
func TestRun(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "curl", "setpriv", "tshark")
	stacks := map[*netnstest.Host]*netnstest.Process{}
	for _, h := range []*netnstest.Host{l.A, l.B} {
		stacks[h] = l.serve(h)
	}
	run := []string{bin("smcr"), "run", "--mode", "user", "--"}
	root := inCgroup(session(t))
	nobody := append(slices.Clone(root), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
	server := l.A.Go(t, nobody[0], append(append(slices.Clone(nobody[1:]), run...), "/usr/bin/python3", "-u", "-c", wireServer, l.A.Addr())...)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", server.Pid()))
	if err != nil || !strings.Contains(string(b), "/smcr-run-") {
		t.Errorf("the server is in %q, %v", b, err)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", server.Pid())); string(b) != "python3\n" || err != nil {
		t.Errorf("the process that was started is %q, %v", b, err)
	}
	smc := func(carried bool, argv ...string) (errs string) {
		t.Helper()
		return l.wireHalf(carried, argv...)
	}
	verbose := slices.Insert(slices.Clone(run), 2, "-v")
	smc(false)
	for _, as := range [][]string{root, nobody} {
		if errs := smc(true, append(slices.Clone(as), run...)...); errs != "" {
			t.Errorf("smcr run prints %q", errs)
		}
		wantSummary(t, smc(true, append(slices.Clone(as), verbose...)...), 1)
	}
	// A stack that ends does not end programs, and the next one has them.
	terminate(t, stacks[l.A])
	if errs := smc(false, append(slices.Clone(root), verbose...)...); !strings.Contains(errs, "smcr: 0 connections over SMC-R, 1 over TCP\nsmcr: 1 over TCP: the peer does not speak SMC") {
		t.Errorf("without a stack of the peer: %s", errs)
	}
	l.serve(l.A)
	smc(true, append(slices.Clone(nobody), run...)...)
	for _, h := range []*netnstest.Host{l.A, l.B} {
		l.wantNoConnections(h)
	}
	server.Kill()
	l.wantNoRuns()
}

// TestAttach has a server that listens already when it is attached: without a restart, its next connections use
// SMC-R, until it is detached: also beneath the next stack if this one is killed.
func TestAttach(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "tshark")
	stacks := map[*netnstest.Host]*netnstest.Process{}
	for _, h := range []*netnstest.Host{l.A, l.B} {
		stacks[h] = l.serve(h)
	}
	dir := session(t)
	argv := append(inCgroup(dir), "/usr/bin/python3", "-u", "-c", wireServer, l.A.Addr())
	server := l.A.Go(t, argv[0], argv[1:]...)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	path := strings.TrimPrefix(dir, cgroupTop(t))
	l.smcr(l.B, "attach", "--cgroup", path, "--connect")
	l.wireHalf(false, inCgroup(dir)...) // the server is not attached
	l.smcr(l.A, "attach", "--pid", fmt.Sprint(server.Pid()), "--accept")
	l.wireHalf(true, inCgroup(dir)...)
	l.wireHalf(false) // the client is elsewhere
	var list []struct {
		Cgroup       string
		Run, Connect bool
		SMCR, TCP    int
		Reasons      []struct{ Text string }
	}
	for h, want := range map[*netnstest.Host][2]int{l.A: {1, 0}, l.B: {1, 1}} {
		if err := json.Unmarshal([]byte(l.smcr(h, "program", "list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Cgroup != path || list[0].Run || list[0].Connect != (h == l.B) || [2]int{list[0].SMCR, list[0].TCP} != want {
			t.Errorf("%s: %+v, want %v", h.Name, list, want)
		}
	}
	// The process of a connection is found by those who may see it.
	idle := l.B.Go(t, "/bin/sh", append(inCgroup(dir)[1:], "/usr/bin/python3", "-c", "import socket, time; c = socket.create_connection(('"+l.A.Addr()+"', 7500)); print('connected', flush=True); time.sleep(600)")...)
	if err := idle.WaitOutput("connected", startTime); err != nil {
		t.Fatal(err)
	}
	var conns []struct {
		Mode, Command string
		PID           int
	}
	for h, p := range map[*netnstest.Host]*netnstest.Process{l.A: server, l.B: idle} {
		if err := json.Unmarshal([]byte(l.smcr(h, "--backend", "user", "connection", "list", "-o", "json")), &conns); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(conns, func(c struct {
			Mode, Command string
			PID           int
		}) bool {
			return c.Mode == "SMCR" && c.Command == "python3" && c.PID == p.Pid()
		}) {
			t.Errorf("%s: %+v, want one of process %d", h.Name, conns, p.Pid())
		}
	}
	idle.Kill()
	if out := l.smcr(l.B, "program", "list", "-o", "wide"); !strings.Contains(out, "the peer does not speak SMC") {
		t.Errorf("%s", out)
	}
	for _, h := range []*netnstest.Host{l.A, l.B} {
		stacks[h].Kill()
		stacks[h] = l.serve(h)
		l.wireHalf(true, inCgroup(dir)...)
	}
	l.smcr(l.A, "detach", "--cgroup", dir)
	l.smcr(l.B, "attach", "--cgroup", path+"/none")
	l.wireHalf(false, inCgroup(dir)...)
	// What was detached is so beneath the next stack. Its configuration file attaches as well.
	conf := filepath.Join(t.TempDir(), "smcr.yaml")
	if err := os.WriteFile(conf, []byte("programs:\n  - cgroup: "+path+"\n    connect: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, last := range []struct {
		carried bool
		args    []string
	}{{false, nil}, {true, []string{"--config", conf}}} {
		stacks[l.A].Kill()
		stacks[l.A] = l.serve(l.A, last.args...)
		l.wireHalf(last.carried, inCgroup(dir)...)
	}
	if out := l.smcr(l.B, "export"); !strings.Contains(out, "programs:\n  - cgroup: "+path+"\n    accept: false\n  - cgroup: "+path+"/none\n") {
		t.Errorf("%s", out)
	}
	for _, p := range []string{path, path + "/none"} {
		l.smcr(l.B, "detach", "--cgroup", p)
	}
	for _, wrong := range []struct{ args, says string }{
		{"detach --cgroup " + path + "/none", "is not attached: see 'smcr program list'"},
		{"attach --pid 1", "at the top of the cgroups"},
		{"attach --cgroup x", "must be a path that begins with /"},
		{"attach", "say which programs"},
		{"attach --pid 1 --cgroup /x", "say which programs"},
	} {
		if _, err := l.try(l.A, strings.Fields(wrong.args)...); err == nil || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("smcr %s: %v, want %q", wrong.args, err, wrong.says)
		}
	}
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", bin("smcr"), "attach", "--cgroup", path}
	if _, err := l.A.Output(t.Context(), nobody[0], nobody[1:]...); err == nil {
		t.Error("a user without rights has attached a cgroup")
	}
	server.Kill()
}
