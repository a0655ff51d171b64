// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestMade: a launcher that is no ancestor of the processes of a program finds them: also those
// whose parents have ended, and those that were made after it had looked. Threads, and processes
// without the filter, are not among them.
func TestMade(t *testing.T) {
	testkind.System(t)
	from := lastPIDNow()
	if from == 0 {
		t.Skip("the kernel has no " + lastPID)
	}
	p := start(t, Config{Broker: (&fakeStack{t: t}).client(), Argv: []string{"sh", "-c", `
for i in 1 2 3; do (setsid sleep 600 & echo $!; exit); done
echo ready
sh -c 'sleep 600 & echo $!; sleep 600 & echo $!; exit'
echo more
exec sleep 600`}})
	root := p.pid(t)
	other := exec.Command("sleep", "600") // without a filter
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	var want []int
	t.Cleanup(func() {
		for _, pid := range append(want, root) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	m := made{from: from}
	list := func() []int {
		b, err := os.ReadFile(lastPID)
		if err != nil {
			t.Fatal(err)
		}
		return m.list(root, b)
	}
	for _, last := range []string{"ready", "more"} {
		for {
			line := p.line(t)
			if line == last {
				break
			}
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, pid)
		}
		for _, pid := range append(want, root) {
			until(t, "the process is found", func() bool { return slices.Contains(list(), pid) })
		}
		if got := list(); slices.Contains(got, other.Process.Pid) || slices.Contains(got, os.Getpid()) {
			t.Errorf("%v has processes without the filter", got)
		}
	}
	// All processes, as where numbers began again.
	m.from = 0
	for _, pid := range append(want, root) {
		if !slices.Contains(list(), pid) {
			t.Errorf("process %d is not found", pid)
		}
	}
}

// TestAsStarted: variables that name the front name the program.
func TestAsStarted(t *testing.T) {
	testkind.System(t)
	own := strconv.Itoa(os.Getpid())
	env := []string{"A=7", "LISTEN_PID=7", "LISTEN_FDS=1", "WATCHDOG_PID=8", "SYSTEMD_EXEC_PID=7", "LISTEN_PIDFDID=9"}
	want := []string{"A=7", "LISTEN_PID=" + own, "LISTEN_FDS=1", "WATCHDOG_PID=8", "SYSTEMD_EXEC_PID=" + own}
	if got := asStarted(env, "7"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if env[1] != "LISTEN_PID=7" {
		t.Error("the argument has changed")
	}
}

// TestRelayOfOthers: a waiter passes on what the program's user and root say, and nothing of
// other users.
func TestRelayOfOthers(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	needProgram(t, "setpriv")
	f := &Front{relay: -1}
	manager, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(manager)
	if err := unix.Bind(manager, &unix.SockaddrUnix{}); err != nil {
		t.Fatal(err)
	}
	name, err := nameOf(manager)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(notifyEnv, name)
	env, err := f.relayTo([]string{"PATH=" + os.Getenv("PATH"), notifyEnv + "=" + name})
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(f.relay, os.Getpid()+1000000)
	defer unix.Close(r.out)
	defer unix.Close(r.in)
	for uid, want := range map[string]string{"0": "said", "65534": ""} {
		// Not by SysProcAttr: a child that changes its user before exec makes this process not
		// dumpable.
		cmd := exec.Command("setpriv", "--reuid="+uid, "--regid="+uid, "--clear-groups", "/usr/bin/python3", "-c", `
import os, socket
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'said', os.environ['NOTIFY_SOCKET'].replace('@', chr(0)))`)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		r.pass()
		b := make([]byte, 64)
		n, _, err := unix.Recvfrom(manager, b, 0)
		if got := string(b[:max(n, 0)]); got != want || err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Errorf("user %s: %q (%v), want %q", uid, got, err, want)
		}
	}
}

// lingeringSender sends a message with sockets whose close would wait for an hour.
const lingeringSender = `
import array, os, socket, struct
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); c.setblocking(False)
try:
    while True: c.send(bytes(65536))
except BlockingIOError: pass
c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 3600))
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [c.fileno(), l.fileno()]))], 0, os.environ['NOTIFY_SOCKET'].replace('@', chr(0)))`

// TestRelayLingering: another user who sends a message with sockets whose close waits does not keep
// the waiter from passing on signals and the end of the program.
func TestRelayLingering(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	needProgram(t, "setpriv")
	f := &Front{relay: -1}
	t.Setenv(notifyEnv, "@none")
	env, err := f.relayTo([]string{"PATH=" + os.Getenv("PATH"), notifyEnv + "=@none"})
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(f.relay, os.Getpid()+1000000)
	defer unix.Close(r.out)
	defer unix.Close(r.in)
	for range 3 {
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", lingeringSender)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	passed := make(chan struct{})
	go func() {
		r.pass()
		close(passed)
	}()
	select {
	case <-passed:
	case <-time.After(10 * time.Second):
		t.Fatal("the waiter waits for the sockets of another user")
	}
	for end := time.Now().Add(10 * time.Second); len(r.closing) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the sockets are not closed")
		}
	}
	if r.fd() != int32(r.in) {
		t.Error("no more messages are received")
	}
}
