// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// passed has the roles of programs that pass a listening socket on: `pass ADDRESS` listens and
// passes the socket to the first that asks for it; `take` asks and serves; `exec ARGV` asks,
// and executes a program with the socket as descriptor 9; `serve` serves on it. `late` is take
// that accepts after SIGUSR1. A server answers each line with what it has read.
const passed = `
import os, signal, socket, sys, time
role = sys.argv[1]

def serve(l):
    print("listening", flush=True)
    while True:
        c, _ = l.accept()
        try:
            c.sendall(b"got " + c.recv(4096))
        except OSError:
            pass # the peer, or its stack, has reset the connection
        c.close()

def take():
    u = socket.socket(socket.AF_UNIX)
    while True:
        try:
            u.connect("\0listener")
            break
        except OSError:
            time.sleep(0.02)
    return socket.recv_fds(u, 10, 1)[1][0]

if role == "pass":
    l = socket.create_server((sys.argv[2], 7))
    u = socket.socket(socket.AF_UNIX)
    u.bind("\0listener")
    u.listen(1)
    c, _ = u.accept()
    socket.send_fds(c, [b"fd"], [l.fileno()])
    l.close()
    print("passed", flush=True)
    time.sleep(600)
elif role == "take":
    serve(socket.socket(fileno=take()))
elif role == "late":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    l = socket.socket(fileno=take())
    print("taken", flush=True)
    signal.sigwait([signal.SIGUSR1])
    serve(l)
elif role == "exec":
    fd = take()
    os.dup2(fd, 9)
    os.close(fd)
    os.execv(sys.argv[2], sys.argv[2:])
elif role == "serve":
    serve(socket.socket(fileno=9))
`

// lineAsker is a client that sends a line and prints the answer, and how long it took.
const lineAsker = `
import socket, sys, time
begin = time.monotonic()
c = socket.create_connection((sys.argv[1], 7))
c.sendall(b"hello")
print(c.recv(4096).decode(errors="replace"), flush=True)
print("took %.3f" % (time.monotonic() - begin), flush=True)
`

// ask has a client of host B ask the server of host A, and returns the client's log. The answer
// must be right, and the client must not hang.
func (l *lab) ask(under bool) string {
	l.t.Helper()
	argv := []string{"python3", "-c", lineAsker, l.A.Addr()}
	begin := time.Now()
	var p *netnstest.Process
	if under {
		p = l.under(l.B, argv...)
	} else {
		p = l.B.Go(l.t, argv[0], argv[1:]...)
	}
	err := p.Wait(endTime)
	if log := p.Log(); err != nil || !strings.Contains(log, "got hello\n") {
		l.t.Errorf("smcr run: %v, after %v: %v\n%s", under, time.Since(begin), err, log)
	}
	took := 0.0
	if m := answerTookRE.FindStringSubmatch(p.Log()); m != nil {
		took, _ = strconv.ParseFloat(m[1], 64)
	}
	// A client that waits for an answer of SMC waits for more than 6 s.
	if took > 5 {
		l.t.Errorf("smcr run: %v: the answer took %v s", under, took)
	}
	return p.Log()
}

var answerTookRE = regexp.MustCompile(`(?m)^took ([0-9.]+)$`)

// overSMC reports whether the summary of a client tells of a connection over SMC-R.
func overSMC(log string) bool { return strings.Contains(log, "1 connection over SMC-R") }

// TestListenerLeaves: a listening socket that goes to a process without launcher, or to another
// launcher, or whose launcher ends, is a TCP socket for its clients. Only a socket with a
// launcher announces SMC.
func TestListenerLeaves(t *testing.T) {
	besideOthers(t)
	for _, test := range []struct {
		name string
		kill bool // the launcher that has announced SMC
		take func() []string
		smc  bool // the connections use SMC-R
	}{
		{"to a process without launcher", false, func() []string { return []string{"python3", "-c", passed, "take"} }, false},
		{"to a process without launcher, launcher killed", true, func() []string { return []string{"python3", "-c", passed, "take"} }, false},
		{"to another launcher", false, func() []string { return underArgv("python3", "-c", passed, "take") }, true},
		{"to another launcher, launcher killed", true, func() []string { return underArgv("python3", "-c", passed, "take") }, true},
		{"exec under another launcher", false, func() []string {
			return append([]string{"python3", "-c", passed, "exec"}, underArgv("python3", "-c", passed, "serve")...)
		}, true},
		{"exec under another launcher, launcher killed", true, func() []string {
			return append([]string{"python3", "-c", passed, "exec"}, underArgv("python3", "-c", passed, "serve")...)
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.kill {
				ofLauncher(t, "a program has no other process")
			}
			test.smc = test.smc || wired // the socket has the cgroup of its creation, whoever accepts
			l := newLab(t, "python3", "tshark")
			l.serve(l.A)
			l.serve(l.B)
			passer := l.under(l.A, "python3", "-c", passed, "pass", l.A.Addr())
			argv := test.take()
			taker := l.A.Go(t, argv[0], argv[1:]...)
			if err := errors.Join(passer.WaitOutput("passed", startTime), taker.WaitOutput("listening", startTime)); err != nil {
				t.Fatal(err)
			}
			if test.kill {
				signalLauncher(t, passer, unix.SIGKILL)
			}
			w := l.watch()
			l.ask(false)
			for i := range 4 {
				log := l.ask(true)
				// The first accept() under a launcher makes the socket announce SMC again.
				if smc := overSMC(log); i > 0 && smc != test.smc {
					t.Errorf("connection %d over SMC-R: %v, want %v\n%s", i, smc, test.smc, log)
				}
				l.ask(false)
			}
			s := w.stop(t)
			if test.kill && !test.smc && s.SMCSYNACKs != 0 {
				t.Errorf("%d SYN-ACK announce SMC after the launcher was killed", s.SMCSYNACKs)
			}
			if !test.smc && s.SMCSYNACKs > 1 {
				t.Errorf("%d SYN-ACK announce SMC, want the first one at most", s.SMCSYNACKs)
			}
		})
	}
}

// TestListenerOrphaned: the launcher of a listening socket is killed while connections wait in
// its queue, whose peers were told of SMC.
func TestListenerOrphaned(t *testing.T) {
	ofLauncher(t, "the stack has agreed with the peer before a connection is in the queue")
	l := newLab(t, "python3")
	l.serve(l.A)
	l.serve(l.B)
	passer := l.under(l.A, "python3", "-c", passed, "pass", l.A.Addr())
	taker := l.A.Go(t, "python3", "-c", passed, "late")
	if err := errors.Join(passer.WaitOutput("passed", startTime), taker.WaitOutput("taken", startTime)); err != nil {
		t.Fatal(err)
	}
	var clients []*netnstest.Process
	for range 3 {
		clients = append(clients, l.under(l.B, "python3", "-c", lineAsker, l.A.Addr()), l.B.Go(t, "python3", "-c", lineAsker, l.A.Addr()))
	}
	testkind.Eventually(t, "all connections are in the queue", func() (any, bool) {
		out, err := l.A.Output(t.Context(), "ss", "-Hltn", "sport", "=", ":7")
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(out)
		return out, len(f) > 1 && f[1] == strconv.Itoa(len(clients))
	})
	time.Sleep(500 * time.Millisecond) // Real time: those with SMC wait for an answer, and nothing says that they do.
	signalLauncher(t, passer, unix.SIGKILL)
	time.Sleep(500 * time.Millisecond) // Real time: the stack learns of the end of the launcher, and nothing says so.
	if err := taker.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		if err := c.Wait(endTime); err != nil || !strings.Contains(c.Log(), "got hello\n") {
			t.Errorf("%v\n%s", err, c.Log())
		}
	}
}

// TestListenerDaemon: a server that becomes a daemon keeps its launcher.
func TestListenerDaemon(t *testing.T) {
	l := newLab(t, "python3")
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.A, "sh", "-c", `setsid python3 -c "$0" pass "$1" & setsid python3 -c "$0" take & exit 0`, passed, l.A.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if log := l.ask(true); !overSMC(log) {
			t.Errorf("not over SMC-R:\n%s", log)
		}
		l.ask(false)
	}
}
