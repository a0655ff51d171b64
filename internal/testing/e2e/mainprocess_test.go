// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// manager starts programs as a service manager does, and looks at the fact that its first
// argument names. The other arguments are what comes before the program.
const manager = `
import array, os, signal, socket, struct, subprocess, sys, time
fact, cmd = sys.argv[1], sys.argv[2:]
beside = '-v' not in cmd # the program has the process that was started
for s in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT: signal.signal(s, signal.SIG_DFL) # as nohup may have left them

def start(code, env={}, **kw):
    return subprocess.Popen(cmd + ['/usr/bin/python3', '-u', '-c', code], env={**os.environ, **env}, **kw)

def lines(code, env={}, **kw):
    p = start(code, env, stdout=subprocess.PIPE, text=True, **kw)
    out = p.communicate(timeout=20)[0]
    return p, out.split()

def started(code, env={}, **kw):
    p = start(code, env, stdout=subprocess.PIPE, text=True, bufsize=1, **kw)
    return p, p.stdout.readline().strip()

def gone(pid):
    for _ in range(1000):
        try: state = open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()[0]
        except OSError: return True
        if state in 'ZX': return True
        time.sleep(.01)
    return False

def identity():
    p, (pid, parent, group, session, children) = lines('''
import os
kids = [k for t in os.listdir('/proc/self/task') for k in open('/proc/self/task/%s/children' % t).read().split()]
print(os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0), len(kids))''', start_new_session=True)
    assert children == '0', 'the program has a child that it has not made'
    assert group == str(p.pid) and session == str(p.pid), (group, session, p.pid)
    if beside: assert pid == str(p.pid) and parent == str(os.getpid()), (pid, parent, p.pid, os.getpid())

def mask():
    # Signals that are blocked or ignored are so for the program.
    code = "print(*[l.split()[1] for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])"
    ignore = lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGINT, signal.SIG_IGN), signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTTOU]))
    for before in None, ignore:
        native = subprocess.run(['/usr/bin/python3', '-c', code], capture_output=True, text=True, preexec_fn=before).stdout
        got = subprocess.run(cmd + ['/usr/bin/python3', '-c', code], capture_output=True, text=True, preexec_fn=before).stdout
        assert got == native, (got, native)

def status():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.chdir(os.environ['TMP'])
    for code, want in [('raise SystemExit(7)', 7), ('pass', 0)] + [
        ('import os; os.kill(os.getpid(), %d)' % s, -s) for s in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGHUP, signal.SIGRTMIN + 3)]:
        got = start(code).wait(20)
        assert got == want, '%s: status %d' % (code, got)
    assert len(os.listdir('.')) <= 2, 'more cores than programs: %s' % os.listdir('.')

def daemon():
    # The status is there at once, and nothing that the daemon has closed stays open.
    begin = time.monotonic()
    p = subprocess.run(cmd + ['sh', '-c', 'setsid sleep 30 >/dev/null 2>&1 </dev/null & echo $!'], capture_output=True, text=True, timeout=20)
    assert p.returncode == 0 and time.monotonic() - begin < 10, p
    os.kill(int(p.stdout), signal.SIGKILL)

def variables():
    for name in 'LISTEN_PID', 'WATCHDOG_PID', 'SYSTEMD_EXEC_PID':
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(w, 1)
            os.environ.update({name: str(os.getpid()), 'OTHER': str(os.getpid())})
            os.execvp(cmd[0], cmd + ['sh', '-c', 'echo $%s $$ $OTHER' % name])
        os.close(w); os.waitpid(pid, 0)
        got, own, other = os.fdopen(r).read().split()
        assert got == own and other == str(pid), (name, got, own, other, pid)

def notify():
    u = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    u.bind(''); u.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); u.settimeout(20)
    name = u.getsockname()
    name = name.decode() if isinstance(name, bytes) else name
    p = start('''
import array, os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(os.environ['NOTIFY_SOCKET'].replace('@', chr(0)))
s.send(b'READY=1')
s.sendmsg([b'FDSTORE=1'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
s.send(b'STOPPING=1')''', {'NOTIFY_SOCKET': name.replace(chr(0), '@')})
    for want, fds in (b'READY=1', 0), (b'FDSTORE=1', 1), (b'STOPPING=1', 0):
        d, a, _, _ = u.recvmsg(4096, 4096)
        pid = [struct.unpack('3i', x[2])[0] for x in a if x[1] == socket.SCM_CREDENTIALS]
        got = sum(len(x[2]) // 4 for x in a if x[1] == socket.SCM_RIGHTS)
        assert d == want and pid == [p.pid] and got == fds, (d, pid, p.pid, got)
    assert p.wait(20) == 0
    u.settimeout(.3)
    try: assert False, 'another message: %s' % u.recv(4096)
    except TimeoutError: pass

catcher = '''
import os, signal, sys, time
for s in %s: signal.signal(s, lambda s, f: print('got', int(s)))
print(os.getpid())
while True: time.sleep(.02)'''

def signals():
    sigs = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGABRT, signal.SIGTSTP, signal.SIGRTMIN + 1]
    # What was ignored at the start gets to a program that handles it.
    for before in None, lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGINT, signal.SIG_IGN)):
        p, pid = started(catcher % [int(s) for s in sigs], preexec_fn=before)
        for s in sigs:
            p.send_signal(s)
            got = p.stdout.readline().strip()
            assert got == 'got %d' % s, (s, got)
        p.kill()
        assert p.wait(20) == -signal.SIGKILL and gone(int(pid)), 'SIGKILL'

def stops():
    p, pid = started(catcher % [int(signal.SIGTERM)])
    for sig in signal.SIGTSTP, signal.SIGTTIN:
        p.send_signal(sig)
        assert os.WIFSTOPPED(os.waitpid(p.pid, os.WUNTRACED)[1])
        p.send_signal(signal.SIGCONT)
        assert os.WIFCONTINUED(os.waitpid(p.pid, os.WCONTINUED)[1])
    for _ in range(50): # stopped and continued without pause: it must not stay stopped
        os.kill(int(pid), signal.SIGSTOP); os.kill(int(pid), signal.SIGCONT)
    p.terminate()
    assert p.stdout.readline().strip() == 'got 15'
    p.kill(); p.wait(20)

globals()[fact]()
print('all is well')
`

// starts are the ways in which a program is started, as root and as a user.
func starts() map[string][]string {
	run := []string{bin("smcr"), "run", "--mode", "user"}
	return map[string][]string{
		"the program is the process": append(slices.Clone(run), "--"),
		"below a waiter":             append(slices.Clone(run), "-v", "--"),
	}
}

// TestMainProcess: for who has started it, a program under smcr run is the process that was
// started.
func TestMainProcess(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "setpriv")
	l.serve(l.A)
	for _, uid := range []string{"0", hostileUser} {
		for name, run := range starts() {
			for _, fact := range []string{"identity", "mask", "status", "daemon", "variables", "notify", "signals", "stops"} {
				t.Run(fmt.Sprintf("%s/user %s/%s", fact, uid, name), func(t *testing.T) {
					dir, err := os.MkdirTemp("", "smcr-main-")
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = os.RemoveAll(dir) })
					if err := os.Chmod(dir, 0o777); err != nil {
						t.Fatal(err)
					}
					argv := as(uid, append([]string{"/usr/bin/python3", "-c", manager, fact}, run...)...)
					p := l.goIn(dir, argv)
					if err := p.Wait(2 * endTime); err != nil || !strings.Contains(p.Log(), "all is well") {
						t.Errorf("%v\n%s", err, p.Log())
					}
				})
			}
		}
	}
}

// goIn starts a program on host A with a directory for its files.
func (l *lab) goIn(dir string, argv []string) *netnstest.Process {
	l.t.Helper()
	cmd := l.A.Command(context.Background(), argv[0], argv[1:]...)
	cmd.Env = append(cmd.Env, "TMP="+dir)
	return l.A.GoCmd(l.t, cmd)
}

// TestMainProcessCommands: programs that start others find what they expect.
func TestMainProcessCommands(t *testing.T) {
	l := newLab(t, "bash", "timeout", "nohup", "setsid", "xargs", "setpriv")
	l.serve(l.A)
	for _, uid := range []string{"0", hostileUser} {
		for name, run := range starts() {
			for _, c := range []struct{ name, script, want string }{
				{"timeout", `timeout 1 $RUN sleep 61.5; echo $?; sleep .3; pgrep --ns $$ --nslist net -fx 'sleep 61.5' || echo none`, "124\nnone\n"},
				{"timeout -s KILL", `{ timeout -s KILL 1 $RUN sleep 62.5; } 2>/dev/null; echo $?; sleep .3; pgrep --ns $$ --nslist net -fx 'sleep 62.5' || echo none`, "137\nnone\n"},
				{"timeout --foreground", `timeout --foreground 1 $RUN sleep 63.5; echo $?; sleep .3; pgrep --ns $$ --nslist net -fx 'sleep 63.5' || echo none`, "124\nnone\n"},
				{"nohup", `nohup $RUN sh -c 'kill -HUP $$; echo alive' 2>/dev/null`, "alive\n"},
				{"setsid", `setsid -w $RUN sh -c 'exit 3'; echo $?`, "3\n"},
				{"env -i", `env -i A=b $RUN /usr/bin/env | grep -v _=`, "A=b\n"},
				{"xargs", `seq 12 | xargs -P 4 -n 1 $RUN sh -c 'exit $0' 2>/dev/null; echo $?; seq 8 | xargs -P 4 -I{} $RUN true; echo $?`, "123\n0\n"},
				{"background", `$RUN sleep 64.5 & kill -TERM %1; wait %1; echo $?; pgrep --ns $$ --nslist net -fx 'sleep 64.5' || echo none`, "143\nnone\n"},
				{"pipe", `yes | $RUN head -c 4 | $RUN cat; echo ${PIPESTATUS[1]}`, "y\ny\n0\n"},
				{"substitution", `x=$($RUN sh -c 'echo out; echo err >&2; sleep 30 >/dev/null 2>&1 & kill -9 $!' 2>&1); echo $x`, "out err\n"},
			} {
				t.Run(fmt.Sprintf("%s/user %s/%s", c.name, uid, name), func(t *testing.T) {
					cmd := l.A.Command(t.Context(), "bash", "-c", c.script)
					cmd.Args = append(cmd.Args[:3], as(uid, cmd.Args[3:]...)...)
					cmd.Env = append(cmd.Env, "RUN="+strings.Join(run, " "))
					p := l.A.GoCmd(t, cmd)
					if err := p.Wait(endTime); err != nil {
						t.Fatalf("%v\n%s", err, p.Log())
					}
					got := strings.Join(slices.DeleteFunc(strings.SplitAfter(p.Log(), "\n"), func(s string) bool {
						return strings.HasPrefix(s, "smcr: ") || strings.Contains(s, "Terminated")
					}), "")
					got = strings.ReplaceAll(got, " smcr: 0 connections over SMC-R, 0 over TCP", "")
					if got != c.want {
						t.Errorf("%q, want %q", got, c.want)
					}
				})
			}
		}
	}
}

// TestMainProcessContainers: a program is what a container runtime has started, as process 1 of a
// PID namespace and as a child of an init.
func TestMainProcessContainers(t *testing.T) {
	l := newLab(t, "bash", "tini", "unshare", "setpriv", "pgrep")
	l.serve(l.A)
	const unshare = "unshare --pid --fork --mount-proc --kill-child "
	for name, parent := range map[string]string{
		"process 1": "", "tini": "tini -- ", "tini -s": "tini -s -- ",
	} {
		for _, uid := range []string{"0", hostileUser} {
			for how, run := range starts() {
				t.Run(fmt.Sprintf("%s/user %s/%s", name, uid, how), func(t *testing.T) {
					argv := strings.Join(as(uid, run...), " ")
					script := "RUN=" + strconv.Quote(unshare+parent+argv) + `
eval "$RUN sh -c 'exit 7'"; echo $?
eval "$RUN sh -c 'kill -KILL \$\$'"; echo $?
# The end of a container comes with SIGTERM, to its process 1 only.
eval "exec $RUN /usr/bin/python3 -u -c \"
import os, signal
def term(*a): print('terminated'); os._exit(5)
signal.signal(15, term)
print('running')
while True: signal.pause()
\"" >$TMP/out &
for i in $(seq 200); do grep -qs running $TMP/out && break; sleep .05; done
kill -TERM $(pgrep -P $!)
wait $!; echo $?
cat $TMP/out
`
					dir := t.TempDir()
					if err := os.Chmod(dir, 0o777); err != nil {
						t.Fatal(err)
					}
					p := l.goIn(dir, []string{"bash", "-c", script})
					if err := p.Wait(endTime); err != nil {
						t.Fatalf("%v\n%s", err, p.Log())
					}
					got := strings.Join(slices.DeleteFunc(strings.SplitAfter(p.Log(), "\n"), func(s string) bool {
						return strings.HasPrefix(s, "smcr: ") || strings.Contains(s, "Killed")
					}), "")
					killed := 137
					if name == "process 1" && how != "below a waiter" {
						killed = 0 // the kernel lets process 1 not kill itself
					}
					if want := fmt.Sprintf("7\n%d\n5\nrunning\nterminated\n", killed); got != want {
						t.Errorf("%q, want %q\n%s", got, want, p.Log())
					}
				})
			}
		}
	}
}

// shellJobs drives an interactive shell on a terminal: a job is stopped, goes on in the
// background and the foreground, and ends by ^C.
const shellJobs = `
import os, pty, select, signal, sys, time
pid, tty = pty.fork()
if pid == 0:
    os.environ['PS1'] = 'prompt> '
    os.execvp('bash', ['bash', '--norc', '--noediting', '-i'])
log = b''
def until(text, since=0):
    global log
    end = time.monotonic() + 20
    while text not in log[since:]:
        left = end - time.monotonic()
        assert left > 0, 'no %s in %s' % (text, log[since:])
        if select.select([tty], [], [], left)[0]: log += os.read(tty, 4096)
def say(text, want):
    at = len(log)
    os.write(tty, text); until(want, at)
    return log[at:]
run = ' '.join(sys.argv[1:]).encode()
until(b'prompt> ')
say(run + b' /usr/bin/python3 -c "import time; print(str(40+2) + chr(33), flush=True); time.sleep(77.25)"\n', b'42!')
say(b'\x1a', b'Stopped')
say(b'jobs -s; echo $((10+1))\n', b'11')
at = say(b'ps -o stat= -C sleep,python3 | cut -c1 | sort | uniq -c; echo $((20+1))\n', b'21')
say(b'bg; echo $((30+1))\n', b'31')
time.sleep(.3)
out = say(b'jobs -r | grep -c Running; echo $((50+1))\n', b'51')
assert b'\n1\r' in out, out
say(b'fg\n', b'77.25')
time.sleep(.3)
say(b'\x03', b'prompt> ')
out = say(b'echo status=$?; jobs; echo $((60+1))\n', b'61')
assert b'status=1\r' in out or b'status=130\r' in out, out
assert b'77.25' not in out, out
# A program that catches ^C gets it once.
say(run + b' /usr/bin/python3 -u -c "import signal,time; n=[]; signal.signal(2, lambda *a: n.append(1)); print(str(70+1) + chr(33)); time.sleep(1.5); print(str(len(n)) + chr(32) + str(len(n)+80))"\n', b'71!')
at = len(log)
os.write(tty, b'\x03'); until(b'1 81', at)
# The terminal belongs to the program, which reads from it.
say(run + b' /usr/bin/python3 -c "print(input(str(90+1)).upper())"\n', b'91')
say(b'from the terminal\n', b'FROM THE TERMINAL')
os.write(tty, b'exit\n')
os.waitpid(pid, 0)
print('ok')
`

// TestMainProcessJobs: job control of a shell works.
func TestMainProcessJobs(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "bash")
	l.serve(l.A)
	for name, run := range starts() {
		t.Run(name, func(t *testing.T) {
			p := l.A.Go(t, "/usr/bin/python3", append([]string{"-c", shellJobs}, run...)...)
			if err := p.Wait(3 * endTime); err != nil || !strings.HasSuffix(p.Log(), "ok\n") {
				t.Errorf("%v\n%s", err, p.Log())
			}
		})
	}
}

// activated executes its arguments with a listening socket as descriptor 3, as systemd does.
const activated = `
import os, socket, sys
l = socket.create_server((sys.argv[1], 7))
fd = os.dup(l.fileno()); l.close()
if fd != 3: os.dup2(fd, 3); os.close(fd)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[2], sys.argv[2:])
`

// activatedServer serves on the socket with which it was started.
const activatedServer = `
import os, socket
assert os.environ['LISTEN_PID'] == str(os.getpid()) and os.environ['LISTEN_FDS'] == '1'
l = socket.socket(fileno=3)
print('listening', flush=True)
while True:
    c, _ = l.accept()
    c.sendall(b'got ' + c.recv(4096)); c.close()
`

// TestInheritedListener: a server that never calls listen() uses SMC with clients that do, from
// its first connection on.
func TestInheritedListener(t *testing.T) {
	for name, run := range starts() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "/usr/bin/python3")
			l.serve(l.A)
			l.serve(l.B)
			argv := append(append([]string{"-c", activated, l.A.Addr()}, run...), "/usr/bin/python3", "-c", activatedServer)
			server := l.A.Go(t, "/usr/bin/python3", argv...)
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if log := l.ask(true); !overSMC(log) {
					t.Errorf("not over SMC-R:\n%s", log)
				}
				l.ask(false)
			}
		})
	}
}

// TestMainProcessDaemon: a server that becomes a daemon uses SMC when the process that was started has ended.
func TestMainProcessDaemon(t *testing.T) {
	l := newLab(t, "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	for name, run := range starts() {
		t.Run(name, func(t *testing.T) {
			cmd := l.A.Command(t.Context(), run[0], append(run[1:], "sh", "-c", `setsid /usr/bin/python3 -c "$0" "$1" >/dev/null 2>&1 & exit 4`, `
import socket, sys
l = socket.create_server((sys.argv[1], 7))
for _ in range(4):
    c, _ = l.accept()
    c.sendall(b'got ' + c.recv(4096)); c.close()
`, l.A.Addr())...)
			p := l.A.GoCmd(t, cmd)
			if err := p.Wait(startTime); err == nil || err.Error() != "exit status 4" {
				t.Fatalf("%v\n%s", err, p.Log())
			}
			if err := l.A.WaitListen(7, startTime); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if log := l.ask(true); !overSMC(log) {
					t.Errorf("not over SMC-R:\n%s", log)
				}
				l.ask(false)
			}
		})
	}
}
