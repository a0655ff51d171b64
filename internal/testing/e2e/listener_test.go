// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// passed has the roles of programs that pass a listening socket on: `pass ADDRESS` listens and
// passes the socket to the first that asks for it; `take` asks and serves; `exec ARGV` asks,
// and executes a program with the socket as descriptor 9; `serve` serves on it. A server answers each line with what it has read.
const passed = `
import os, socket, sys, time
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

// TestListenerPassed: a listening socket uses SMC-R by who has made it, whoever accepts: a process that is not under smcr run,
// one that is, and one that has inherited the socket.
func TestListenerPassed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		argv []string
	}{
		{"to a process not under smcr run", []string{"python3", "-c", passed, "take"}},
		{"to another under smcr run", underArgv("python3", "-c", passed, "take")},
		{"exec under another smcr run", append([]string{"python3", "-c", passed, "exec"}, underArgv("python3", "-c", passed, "serve")...)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "python3")
			l.serve(l.A)
			l.serve(l.B)
			passer := l.under(l.A, "python3", "-c", passed, "pass", l.A.Addr())
			taker := l.A.Go(t, test.argv[0], test.argv[1:]...)
			if err := errors.Join(passer.WaitOutput("passed", startTime), taker.WaitOutput("listening", startTime)); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				l.ask(false)
				if log := l.ask(true); !overSMC(log) {
					t.Errorf("not over SMC-R:\n%s", log)
				}
			}
		})
	}
}

// TestListenerDaemon: a server that becomes a daemon uses SMC-R as before.
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
