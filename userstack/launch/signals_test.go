// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

var _ = testkind.Signals()

// python writes handlers without SA_RESTART, and restarts calls itself unless
// the handler raises: both ends of what an interrupted call can lead to.
const pythonSignals = `
import errno, os, resource, select, signal, socket, sys, threading, time
host, port = sys.argv[2].rsplit(':', 1)
addr = (host, int(port))
hits = []
def count(*a): hits.append(1)
class Stop(Exception): pass
def stop(*a): raise Stop
def later(t, n=1, every=0.05):
    def run():
        time.sleep(t)
        for _ in range(n):
            os.kill(os.getpid(), signal.SIGUSR1); time.sleep(every)
    thread = threading.Thread(target=run); thread.start()
    return thread
def within(call, t):
    # Not before the program is in the call.
    def run():
        while open('/proc/self/task/%d/syscall' % os.getpid()).read().split()[0] != str(call): time.sleep(0.001)
        time.sleep(t); os.kill(os.getpid(), signal.SIGUSR1)
    threading.Thread(target=run).start()
def too_late(s, storm):
    # A busy machine sent the first signal when the call was over.
    storm.join(); s.close(); hits.clear()

def echo(s):
    s.settimeout(60); s.sendall(b'hi'); assert s.recv(2) == b'hi'

def connect_restarted():
    # The call is made again and again until it is done.
    signal.signal(signal.SIGUSR1, count)
    while True:
        storm = later(0.01, 5, 0.04)
        s = socket.socket(); s.connect(addr)
        if hits: break
        too_late(s, storm)
    storm.join() # getpeername can be interrupted, too: see the package's description
    assert s.getpeername() == addr
    echo(s)

def connect_blocking():
    # The kernel repeats the call. The launcher must not treat the socket as
    # non-blocking, although the service sets O_NONBLOCK for a moment.
    signal.signal(signal.SIGUSR1, count); signal.siginterrupt(signal.SIGUSR1, False)
    while True:
        storm = later(0.001, 20, 0.001)
        s = socket.socket(); s.connect(addr)
        assert s.getpeername() == addr
        if hits: break
        too_late(s, storm)
    assert os.get_blocking(s.fileno()), 'the socket became non-blocking'
    s.sendall(b'hi'); assert s.recv(2) == b'hi'

def connect_nonblocking():
    # The kernel makes the call again while it is held, which is no second one:
    # the first word on a connection that is being made is EINPROGRESS.
    signal.signal(signal.SIGUSR1, count); signal.siginterrupt(signal.SIGUSR1, False)
    while True:
        storm = later(0.001, int(sys.argv[3]), 0.001)
        s = socket.socket(); s.setblocking(False)
        e = s.connect_ex(addr)
        assert e in (0, errno.EINPROGRESS), errno.errorcode[e]
        if hits: break
        too_late(s, storm)
    if e == errno.EINPROGRESS:
        e = s.connect_ex(addr)
        assert e in (0, errno.EALREADY, errno.EISCONN), errno.errorcode[e]
    r, w, x = select.select([], [s], [], 60)
    assert w, 'never writable'
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert s.getpeername() == addr
    assert not os.get_blocking(s.fileno()), 'the socket became blocking'
    echo(s)

def connect_interrupted():
    # EINTR; the connection goes on and is found ready by poll.
    # It ends when the test has read that the call did.
    signal.signal(signal.SIGUSR1, stop)
    s = socket.socket()
    try:
        within(int(sys.argv[3]), 0.1); s.connect(addr); assert False, 'not interrupted'
    except Stop: pass
    print('interrupted', flush=True)
    s.setblocking(False)
    r, w, x = select.select([], [s], [], 60)
    assert w, 'never writable'
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    s.setblocking(True)
    echo(s)

def connect_given_up():
    # The program makes no call by which the connection could be placed.
    signal.signal(signal.SIGUSR1, stop)
    while True:
        s = socket.socket()
        try:
            within(int(sys.argv[3]), 0); s.connect(addr); assert False, 'not interrupted'
        except Stop: pass
        time.sleep(1.5)
        e = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if e: break
        s.close() # a busy machine sent the signal when the pair was in place
    assert e == errno.ECONNABORTED, errno.errorcode[e]
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    try: s.getpeername(); assert False, 'connected after it was told of a failure'
    except OSError as err: assert err.errno == errno.ENOTCONN, err
    s.connect(addr)
    echo(s)

def accept_interrupted():
    l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(5)
    signal.signal(signal.SIGUSR1, stop)
    for i in range(3):
        try:
            within(int(sys.argv[3]), 0.05); l.accept(); assert False, 'not interrupted'
        except Stop: pass
    time.sleep(0.3)
    # Nothing that comes now is lost.
    signal.signal(signal.SIGUSR1, count)
    cs = [socket.create_connection(l.getsockname()) for _ in range(3)]
    storm = later(0.0, 20, 0.002)
    got = {l.accept()[1] for _ in cs}
    storm.join() # getsockname can be interrupted, too: see the package's description
    assert got == {c.getsockname() for c in cs}, got

def accept_storm():
    # Signals while connections come in: each has to arrive once.
    l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(200)
    signal.signal(signal.SIGUSR1, count)
    later(0, 150, 0.001)
    n = 60
    def dial():
        for _ in range(n):
            c = socket.create_connection(l.getsockname()); c.sendall(b'x'); c.close()
    t = threading.Thread(target=dial); t.start()
    for _ in range(n):
        c, a = l.accept(); assert c.recv(1) == b'x'; c.close()
    t.join()
    assert hits

def accept_beyond_limit():
    # A connection for which there is no descriptor waits for the next accept().
    l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(5)
    c = socket.create_connection(l.getsockname()); c.sendall(b'x')
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    fds = []
    try:
        while True: fds.append(os.dup(1))
    except OSError as e: assert e.errno == errno.EMFILE, e
    for i in range(3):
        try: l.accept(); assert False, 'a descriptor too many'
        except OSError as e: assert e.errno == errno.EMFILE, e
    for fd in fds: os.close(fd)
    a, name = l.accept()
    assert name == c.getsockname() and a.recv(1) == b'x'
    a.sendall(b'y'); assert c.recv(1) == b'y'
    c.close(); assert a.recv(1) == b''

def handler_while_blocked():
    # A handler runs although accept blocks, and closes what it wants.
    l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(5)
    signal.signal(signal.SIGUSR1, lambda *a: l.shutdown(socket.SHUT_RDWR)); later(0.1)
    try:
        l.accept(); assert False
    except OSError as e:
        assert e.errno == 22, e
    port = l.getsockname()[1]
    l.close()
    # The port is free at once.
    l = socket.socket(); l.bind(('127.0.0.1', port)); l.listen(5)

globals()[sys.argv[1]]()
print('done')
`

func TestSignals(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	for _, tt := range []struct {
		name  string
		stack *fakeStack
		args  []string
	}{
		{"connect_restarted", &fakeStack{estDelay: 150 * ms}, nil},
		{"connect_restarted", &fakeStack{clcDelay: 150 * ms}, nil},
		{"connect_restarted", &fakeStack{clcDelay: 150 * ms, decline: "no link"}, nil},
		{"connect_restarted", &fakeStack{estDelay: 150 * ms, noPeer: true}, nil},
		{"connect_blocking", &fakeStack{flagTime: 50 * ms}, nil},
		{"connect_blocking", &fakeStack{flagTime: 50 * ms, clcDelay: 50 * ms}, nil},
		{"connect_nonblocking", &fakeStack{estDelay: 150 * ms}, []string{"40"}},
		{"connect_nonblocking", &fakeStack{estDelay: 10 * ms, clcDelay: 150 * ms}, []string{"40"}},
		{"connect_nonblocking", &fakeStack{estDelay: 10 * ms, clcDelay: 150 * ms, decline: "no link"}, []string{"40"}},
		{"connect_nonblocking", &fakeStack{estDelay: 10 * ms, noPeer: true}, []string{"20"}},
		{"connect_nonblocking", &fakeStack{estDelay: 40 * ms, noPeer: true}, []string{"100"}},
		{"accept_interrupted", &fakeStack{}, []string{fmt.Sprint(unix.SYS_ACCEPT4)}},
		{"accept_interrupted", &fakeStack{noPeer: true}, []string{fmt.Sprint(unix.SYS_ACCEPT4)}},
		{"accept_storm", &fakeStack{}, nil},
		{"accept_storm", &fakeStack{noPeer: true}, nil},
		{"accept_beyond_limit", &fakeStack{}, nil},
		{"accept_beyond_limit", &fakeStack{noPeer: true}, nil},
		{"handler_while_blocked", &fakeStack{}, nil},
	} {
		name := fmt.Sprintf("%s/est=%v,clc=%v,decline=%v,noPeer=%v", tt.name, tt.stack.estDelay, tt.stack.clcDelay, tt.stack.decline != "", tt.stack.noPeer)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := launched(t, tt.stack, "", nil, append([]string{"python3", "-c", pythonSignals, tt.name, addr}, tt.args...)...)
			if res.status != 0 || res.out != "done\n" {
				t.Errorf("status %d, %+v\n%s", res.status, res.stats, res.out)
			}
		})
	}
}

// A connect() that a signal interrupts goes on, wherever the stack is.
func TestConnectInterrupted(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	gate := func() chan struct{} { return make(chan struct{}) }
	for name, stack := range map[string]*fakeStack{
		"TCP":          {estGate: gate()},
		"TCP, no peer": {estGate: gate(), noPeer: true},
		"CLC":          {clcGate: gate()},
		"CLC declined": {clcGate: gate(), decline: "no link"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stack.t = t
			p := start(t, Config{Broker: stack.client(), Argv: []string{
				"python3", "-c", pythonSignals, "connect_interrupted", addr, fmt.Sprint(unix.SYS_CONNECT),
			}})
			if got := p.line(t); got != "interrupted" {
				t.Fatal(got)
			}
			if stack.estGate != nil {
				close(stack.estGate)
			} else {
				close(stack.clcGate)
			}
			if res := p.wait(t); res.status != 0 || res.out != "done\n" {
				t.Errorf("status %d, %+v\n%s", res.status, res.stats, res.out)
			}
		})
	}
}

// If the program was told that a connection failed, the launcher does not connect again
// after a later message of the service about this connection.
func TestConnectGivenUp(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	res := launched(t, &fakeStack{estDelay: 60 * ms}, "", nil,
		"python3", "-c", pythonSignals, "connect_given_up", addr, fmt.Sprint(unix.SYS_CONNECT))
	if res.status != 0 || res.out != "done\n" {
		t.Errorf("status %d\n%s", res.status, res.out)
	}
	if n := res.stats.TCP[ReasonNoService]; n != 0 || res.stats.Failed[ReasonInterrupted] != 1 {
		t.Errorf("%+v: want one connection that was interrupted", res.stats)
	}
}

// The port of a server that is killed while it waits in accept is free at
// once, and its launcher ends.
func TestKilledInAccept(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	stack := &fakeStack{t: t}
	p := start(t, Config{Broker: stack.client(), Argv: []string{"python3", "-u", "-c", `
import socket, threading
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(5)
print(l.getsockname()[1])
for _ in range(4): threading.Thread(target=l.accept).start()
`}})
	port := p.line(t)
	time.Sleep(100 * ms)
	_ = syscall.Kill(p.pid(t), syscall.SIGKILL)
	if res := p.wait(t); res.status != 128+9 {
		t.Errorf("status %d", res.status)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestKilledInConnect(t *testing.T) {
	testkind.System(t)
	stack := &fakeStack{clcDelay: 2 * patience, t: t}
	p := startProbe(t, stack, "blocking", echoServer(t, "tcp4", "127.0.0.1:0", ""), "smc")
	for stack.connects.Load() == 0 {
		time.Sleep(10 * ms)
	}
	time.Sleep(50 * ms)
	_ = syscall.Kill(p.pid(t), syscall.SIGKILL)
	if res := p.wait(t); res.status != 128+9 {
		t.Errorf("status %d", res.status)
	}
	until(t, "the connection does not outlive the program", func() bool { return stack.active.Load() == 0 })
}

func TestContextEndsProgram(t *testing.T) {
	testkind.System(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res := launchedWith(t, ctx, Config{Argv: []string{"sleep", "60"}, Broker: (&fakeStack{t: t}).client(), Started: func(int) {
		time.AfterFunc(200*ms, cancel)
	}}, "")
	if res.status != 128+15 { // not the end of the sleep
		t.Errorf("status %d", res.status)
	}
}

// Signals to the launcher reach the program.
func TestSignalsForwarded(t *testing.T) {
	testkind.System(t)
	p := start(t, Config{Broker: (&fakeStack{t: t}).client(), Argv: []string{
		"sh", "-c", `trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.05; done`,
	}})
	if got := p.line(t); got != "ready" {
		t.Fatal(got)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	if got := p.line(t); got != "usr1" {
		t.Fatal(got)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	if res := p.wait(t); res.status != 5 || !strings.Contains(res.out, "term") {
		t.Errorf("status %d, %q", res.status, res.out)
	}
}

func TestStartErrors(t *testing.T) {
	testkind.System(t)
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"noexec": 0o644, "garbage": 0o755} {
		if err := os.WriteFile(dir+"/"+name, []byte{0, 1, 2}, mode); err != nil {
			t.Fatal(err)
		}
	}
	for argv0, want := range map[string]int{
		"no-such-program-at-all": ExitNotFound, "/no/such/file": ExitNotFound, dir: ExitNotExecutable,
		dir + "/noexec": ExitNotExecutable, dir + "/garbage": ExitNotExecutable,
	} {
		status, _, err := Run(t.Context(), Config{Argv: []string{argv0}})
		var se *StartError
		if !errors.As(err, &se) || status != want || se.ExitStatus() != want {
			t.Errorf("%s: status %d, want %d (%v)", argv0, status, want, err)
		}
	}
}

// After the death of the service, programs continue with TCP.
func TestServiceDies(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	stack := &fakeStack{t: t}
	cl := stack.client()
	p := start(t, Config{Broker: cl, Argv: []string{"python3", "-u", "-c", `
import socket, sys, time
host, port = sys.argv[1].split(':')
s = socket.create_connection((host, int(port)))
print('connected')
try:
    print('old', s.recv(1))
except OSError as e:
    print('old', e.errno)
try: s.getpeername()
except OSError as e: print('peer', e.errno)
s.setsockopt(6, 1, 1)
try: s.setsockopt(6, 9999, 1)
except OSError as e: print('option', e.errno)
s = socket.create_connection((host, int(port)))
s.sendall(b'x'); print('new', s.recv(1))
`, addr}})
	if got := p.line(t); got != "connected" {
		t.Fatal(got)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	res := p.wait(t)
	if want := "old 104\npeer 107\noption 92\nnew b'x'\n"; res.out != want || res.status != 0 {
		t.Errorf("status %d, %q, want %q", res.status, res.out, want)
	}
	if res.stats.TCP[ReasonNoService] != 1 || res.stats.ByMode[broker.ModeSMCR] != 1 {
		t.Errorf("%+v", res.stats)
	}
}
