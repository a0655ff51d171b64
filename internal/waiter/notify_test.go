// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestAsStarted: variables that name the waiter name the program.
func TestAsStarted(t *testing.T) {
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
	env, relay, err := relayTo([]string{"PATH=" + os.Getenv("PATH"), notifyEnv + "=" + name})
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(relay[0], relay[1], os.Getpid()+1000000)
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
	t.Setenv(notifyEnv, "@none")
	env, relay, err := relayTo([]string{"PATH=" + os.Getenv("PATH"), notifyEnv + "=@none"})
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(relay[0], relay[1], os.Getpid()+1000000)
	defer unix.Close(r.out)
	defer unix.Close(r.in)
	for range 3 {
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", lingeringSender)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r.pass() // which would wait for an hour
	testkind.Eventually(t, "the sockets are closed", func() (any, bool) { return len(r.closing), len(r.closing) == 0 })
	if r.fd() != int32(r.in) {
		t.Error("no more messages are received")
	}
}
