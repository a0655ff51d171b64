// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/cgroup"
	"smcr/internal/place"
	"smcr/internal/testing/testkind"
)

// Two users who are there on each machine.
const (
	nobody = 65534
	daemon = 1
)

// bed is a process of Serve, within this one, and a part of the tree of cgroups for those who ask it.
type bed struct {
	t      *testing.T
	dir    string // of the part
	socket string
	end    func()
}

func newBed(t *testing.T) *bed {
	t.Helper()
	testkind.System(t)
	top, err := cgroup.Top()
	if err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b := &bed{t: t, dir: fmt.Sprintf("%s/smcr-test-runs-%d", top, os.Getpid()), end: func() {}}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Skip("the cgroup v2 tree is not for this process to write: ", err)
	}
	folder, err := os.MkdirTemp("", "smcr-runs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.eventually("the cgroups go", func() error { return os.Remove(b.dir) })
		b.end()
		os.RemoveAll(folder)
	})
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	b.socket = filepath.Join(folder, "sock")
	return b
}

func (b *bed) eventually(what string, f func() error) {
	b.t.Helper()
	testkind.Eventually(b.t, what, func() (any, bool) { err := f(); return err, err == nil })
}

// serve begins to answer.
func (b *bed) serve() {
	b.t.Helper()
	l, err := listen(b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background()) // that of the test ends too early
	var running sync.WaitGroup
	running.Go(func() {
		if err := Serve(ctx, l, Config{Idle: time.Hour, Log: slog.New(slog.DiscardHandler)}); err != nil {
			b.t.Error(err)
		}
	})
	b.end = sync.OnceFunc(func() {
		stop()
		running.Wait()
	})
}

// asks connects, prints what it is told, and runs until its input ends.
const asks = `
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
print(s.recv(16).decode(), flush=True)
sys.stdin.read()`

// client is a process of a user.
type client struct {
	b     *bed
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stop  func()
}

// start starts a program of a user in the part of the tree, behind other commands.
func (b *bed) start(uid int, program string, before ...string) *client {
	b.t.Helper()
	argv := append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, b.dir}, before...)
	argv = append(argv, "setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", uid), "--clear-groups", "/usr/bin/python3", "-c", program, b.socket)
	c := &client{b: b, cmd: exec.Command("/bin/sh", argv...)}
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	c.lines = bufio.NewScanner(out)
	c.stop = sync.OnceFunc(func() {
		in.Close()
		_ = c.cmd.Wait()
	})
	b.t.Cleanup(c.stop)
	return c
}

// line returns what it prints next.
func (c *client) line() string {
	c.b.t.Helper()
	if !c.lines.Scan() {
		c.b.t.Fatalf("%q has ended: %v", c.cmd.Args, c.lines.Err())
	}
	return c.lines.Text()
}

// cgroup returns the folder of its cgroup.
func (c *client) cgroup() string {
	c.b.t.Helper()
	p, err := cgroup.Of(c.cmd.Process.Pid)
	if err != nil {
		c.b.t.Fatal(err)
	}
	return filepath.Dir(c.b.dir) + p
}

// runs returns how many cgroups for runs there are.
func (b *bed) runs() (n int) {
	b.t.Helper()
	all, err := filepath.Glob(b.dir + "/" + cgroup.RunPrefix + "*")
	if err != nil {
		b.t.Fatal(err)
	}
	return len(all)
}

// wantRuns waits until there are so many.
func (b *bed) wantRuns(want int) {
	b.t.Helper()
	b.eventually("cgroups of runs come and go", func() error {
		if n := b.runs(); n != want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	})
}

// TestAsk: programs of two users have cgroups of their own below the one that they are in, with the network namespace in the
// name, until they end; also if the process of Serve is another one by then.
func TestAsk(t *testing.T) {
	b := newBed(t)
	if err := ask(t.Context(), b.socket); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
	b.serve()
	cookie, err := place.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("%s/%s%d-", b.dir, cgroup.RunPrefix, cookie)
	var all []*client
	for i, uid := range []int{nobody, daemon, nobody} {
		c := b.start(uid, asks)
		if got := c.line(); got != "0" || !strings.HasPrefix(c.cgroup(), prefix) {
			t.Errorf("user %d is told %s, and is in %s, want %s", uid, got, c.cgroup(), prefix)
		}
		all = append(all, c)
		b.wantRuns(i + 1)
	}
	// Root asks where it may not make a cgroup itself.
	c := b.start(0, asks)
	if got := c.line(); got != "0" || !strings.HasPrefix(c.cgroup(), prefix) {
		t.Errorf("root is told %s, and is in %s, want %s", got, c.cgroup(), prefix)
	}
	c.stop()
	b.wantRuns(len(all))
	// Who looks whether somebody listens does not ask.
	own, err := cgroup.Of(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(b.socket); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second process listens: %v", err)
	}
	if now, err := cgroup.Of(0); now != own || err != nil || b.runs() != len(all) {
		t.Errorf("this process is in %s, %v, want %s; %d runs", now, err, own, b.runs())
	}
	all[0].stop()
	b.wantRuns(2)
	b.end()
	all[1].stop()
	b.serve()
	b.wantRuns(1)
	all[2].stop()
	b.wantRuns(0)
}

// TestIdle: the process ends when there is nothing to do, and not before.
func TestIdle(t *testing.T) {
	b := newBed(t)
	l, err := listen(b.socket)
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(t.Context(), l, Config{Idle: 20 * time.Millisecond, Needed: func() bool { return !over.Load() }, Log: slog.New(slog.DiscardHandler)})
	}()
	c := b.start(nobody, asks)
	if got := c.line(); got != "0" {
		t.Error(got)
	}
	over.Store(true)
	c.stop()
	select {
	case err := <-ended:
		if err != nil || b.runs() != 0 {
			t.Errorf("%v, %d cgroups", err, b.runs())
		}
	case <-time.After(testkind.Patience):
		t.Error("it does not end")
	}
	if err := ask(t.Context(), b.socket); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
}

// floods has many processes ask, and prints what they are told.
const floods = `
import collections, os, socket, sys
n, told = 600, collections.Counter()
r, w = os.pipe()
hold, let = os.pipe()
for i in range(n):
    if os.fork() == 0:
        os.close(let)
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        os.write(w, b'%4d' % int(s.recv(16)))
        os.read(hold, 1)
        os._exit(0)
for i in range(n):
    told[int(os.read(r, 4))] += 1
print(told[0], told[87], flush=True)
sys.stdin.read()
os.close(let)
for i in range(n):
    os.wait()`

// TestFlood: a user who asks for all that there is has a share, and another one is served meanwhile.
func TestFlood(t *testing.T) {
	b := newBed(t)
	b.serve()
	flood := b.start(nobody, floods)
	if got := flood.line(); got != "256 344" {
		t.Errorf("%s were moved and refused (EUSERS), want 256 344", got)
	}
	b.wantRuns(256)
	c := b.start(daemon, asks)
	if got := c.line(); got != "0" {
		t.Error(got)
	}
	b.wantRuns(257)
	flood.stop()
	b.wantRuns(1)
	again := b.start(nobody, asks)
	if got := again.line(); got != "0" {
		t.Error(got)
	}
}

// silent connect in many processes, say nothing, and go, or send what nobody reads.
const silent = `
import os, socket, sys
all = []
for i in range(200):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    try:
        s.connect(sys.argv[1])
    except BlockingIOError:
        continue
    try:
        socket.send_fds(s, [b'x' * 1000], [0] * 200)
        s.send(b'x' * 100000)
    except OSError:
        pass
    all.append(s)
print('sent', flush=True)
sys.stdin.read()`

// TestSilent: who sends instead of reading, with descriptors, makes nobody wait.
func TestSilent(t *testing.T) {
	b := newBed(t)
	b.serve()
	for range 3 {
		if got := b.start(nobody, silent).line(); got != "sent" {
			t.Error(got)
		}
	}
	c := b.start(daemon, asks)
	if got := c.line(); got != "0" {
		t.Error(got)
	}
}

// TestPassed: who has a connection of another process is not moved, and nor is whoever comes after the one that has connected.
func TestPassed(t *testing.T) {
	const program = `
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
child = os.fork()
if child == 0:
    s.connect(sys.argv[1])
    os._exit(0)
os.wait()
print('over', flush=True)
print(s.recv(16).decode(), flush=True)
sys.stdin.read()`
	b := newBed(t)
	l, err := listen(b.socket)
	if err != nil {
		t.Fatal(err)
	}
	c := b.start(nobody, program)
	if got := c.line(); got != "over" {
		t.Fatal(got)
	}
	stop := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(stop)
		if err := Serve(ctx, l, Config{Idle: time.Hour, Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Error(err)
		}
	}()
	defer func() { cancel(); <-stop }()
	if got, err := strconv.Atoi(c.line()); err != nil || got == 0 {
		t.Errorf("%d, %v", got, err)
	}
	if got := c.cgroup(); got != b.dir || b.runs() != 0 {
		t.Errorf("it is in %s, and there are %d cgroups", got, b.runs())
	}
}

// TestNamespaces: cgroup, process and user namespaces of one who asks change nothing, and the network namespace is in the name.
func TestNamespaces(t *testing.T) {
	b := newBed(t)
	b.serve()
	own, err := place.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"--cgroup"}, {"--cgroup", "--mount"}, {"--net"}} {
		c := b.start(nobody, asks, append([]string{"unshare"}, flags...)...)
		got := c.line()
		same := strings.HasPrefix(c.cgroup(), fmt.Sprintf("%s/%s%d-", b.dir, cgroup.RunPrefix, own))
		if got != "0" || !strings.HasPrefix(c.cgroup(), b.dir+"/"+cgroup.RunPrefix) || same != (flags[0] != "--net") {
			t.Errorf("%q: %s, in %s, own namespace %d", flags, got, c.cgroup(), own)
		}
		c.stop()
		b.wantRuns(0)
	}
}

// TestNotRoot: nobody asks a process of another user than root.
func TestNotRoot(t *testing.T) {
	b := newBed(t)
	const impostor = `
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print('listens', flush=True)
c = s.accept()[0]
c.send(b'0')
sys.stdin.read()`
	if err := os.Chmod(filepath.Dir(b.socket), 0o777); err != nil {
		t.Fatal(err)
	}
	if got := b.start(nobody, impostor).line(); got != "listens" {
		t.Fatal(got)
	}
	if err := ask(t.Context(), b.socket); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
}

// TestBelow: who is in a cgroup for a run has it already.
func TestBelow(t *testing.T) {
	b := newBed(t)
	b.serve()
	const twice = `
import socket, sys
for i in range(2):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    print(s.recv(16).decode(), flush=True)
sys.stdin.read()`
	c := b.start(nobody, twice)
	if a, z := c.line(), c.line(); a != "0" || z != "0" {
		t.Error(a, z)
	}
	b.wantRuns(1)
}

// TestEnded: a run that ends at once leaves nothing.
func TestEnded(t *testing.T) {
	b := newBed(t)
	b.serve()
	const quick = `
import os, socket, sys
for i in range(200):
    if os.fork() == 0:
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        os._exit(0)
    os.wait()
print('over', flush=True)`
	c := b.start(nobody, quick)
	if got := c.line(); got != "over" {
		t.Error(got)
	}
	c.stop()
	b.wantRuns(0)
}
