# SPDX-License-Identifier: Apache-2.0
"""Makes a connection to an echo server on a socket with several descriptors, in the way that
the first argument names, and sends and receives through each of them.
Usage: copies.py KIND ADDRESS:PORT"""
import ctypes, errno, fcntl, os, select, signal, socket, subprocess, sys, threading, time
kind, address = sys.argv[1], sys.argv[2].rsplit(":", 1)
address = (address[0], int(address[1]))
libc = ctypes.CDLL(None, use_errno=True)
signal.alarm(60)
s = socket.socket()
N = 0

def use(fd):
    global N
    N += 1
    text = b"%d of process %d;" % (N, os.getpid())
    at = 0
    while at < len(text):
        at += os.write(fd, text[at:])
    got = b""
    while len(got) < len(text):
        if not select.select([fd], [], [], 20)[0]:
            sys.exit("nothing comes through descriptor %d of process %d" % (fd, os.getpid()))
        more = os.read(fd, 99)
        if not more:
            sys.exit("end of file")
        got += more
    assert got == text, (got, text)
    socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM).getpeername()

def child(f):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            f()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid

def ended(pid):
    assert os.waitpid(pid, 0)[1] == 0

class Gate:
    def __init__(self):
        self.r, self.w = os.pipe()
    def open(self):
        os.write(self.w, b".")
    def wait(self):
        os.read(self.r, 1)

def connected():
    s.setblocking(False)
    e = s.connect_ex(address)
    if e == errno.EINPROGRESS:
        assert select.select([], [s], [], 20)[1], "not writable"
        e = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert e == 0, e
    s.setblocking(True)

def both(d):
    s.connect(address)
    for fd in s.fileno(), d, s.fileno(), d:
        use(fd)

if kind == "one": s.connect(address); use(s.fileno())
elif kind == "dup": both(os.dup(s.fileno()))
elif kind == "dup, non-blocking": d = os.dup(s.fileno()); connected(); use(d); use(s.fileno())
elif kind == "dup2": both(os.dup2(s.fileno(), 200))
elif kind == "dup3": both(os.dup2(s.fileno(), 200, inheritable=False))
elif kind == "F_DUPFD": both(fcntl.fcntl(s, fcntl.F_DUPFD, 300))
elif kind == "dup, closed": os.close(os.dup(s.fileno())); s.connect(address); use(s.fileno())
elif kind == "the copy connects": d = socket.fromfd(s.fileno(), s.family, s.type); d.connect(address); use(s.fileno()); use(d.fileno())
elif kind == "fork, the child connects":
    ended(child(lambda: (s.connect(address), use(s.fileno())))); use(s.fileno())
elif kind == "fork, the parent connects":
    g = Gate(); c = child(lambda: (g.wait(), use(s.fileno()))); s.connect(address); use(s.fileno()); g.open(); ended(c); use(s.fileno())
elif kind == "fork, ended": ended(child(lambda: None)); s.connect(address); use(s.fileno())
elif kind == "fork, closed":
    g, h = Gate(), Gate(); c = child(lambda: (s.close(), h.open(), g.wait())); h.wait(); s.connect(address); use(s.fileno()); g.open(); ended(c)
elif kind == "grandchild":
    # The child ends at once, so its child has another parent.
    g, h = Gate(), Gate()
    ended(child(lambda: child(lambda: (g.wait(), use(s.fileno()), h.open())))); s.connect(address); use(s.fileno()); g.open(); h.wait(); use(s.fileno())
elif kind == "exec, inherited":
    s.set_inheritable(True)
    p = subprocess.Popen([sys.executable, "-c", "import os,sys; sys.stdin.read(1); os.write(%d, b'x'); assert os.read(%d, 1) == b'x'" % (s.fileno(), s.fileno())], stdin=subprocess.PIPE, close_fds=False)
    s.connect(address); use(s.fileno()); p.communicate(b"g"); assert p.returncode == 0; use(s.fileno())
elif kind == "exec, close-on-exec":
    p = subprocess.Popen(["sleep", "60"]); s.connect(address); use(s.fileno()); p.kill(); p.wait()
elif kind == "SCM_RIGHTS":
    x, y = socket.socketpair(); g, h = Gate(), Gate()
    def receives():
        fd = socket.recv_fds(y, 1, 1)[1][0]; h.open(); g.wait(); use(fd)
    pid = os.fork()
    if pid == 0:
        s.close(); receives(); os._exit(0)
    socket.send_fds(x, [b"x"], [s.fileno()]); h.wait(); s.connect(address); use(s.fileno()); g.open(); ended(pid); use(s.fileno())
elif kind == "thread":
    t = threading.Thread(target=s.connect, args=(address,)); t.start(); t.join(); use(s.fileno())
elif kind == "CLONE_FILES":
    g, h = Gate(), Gate()
    pid = libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x400 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        h.open(); g.wait(); use(s.fileno()); os._exit(0)
    h.wait(); s.connect(address); use(s.fileno()); g.open(); ended(pid); use(s.fileno())
elif kind == "the thread's own table":
    done = []
    def f():
        assert libc.unshare(0x400) == 0
        s.connect(address); use(s.fileno()); done.append(1)
    t = threading.Thread(target=f); t.start(); t.join(); assert done; use(s.fileno())
elif kind in ("during", "during, non-blocking"):
    go = threading.Event()
    def f():
        go.set()
        s.connect(address) if kind == "during" else connected()
    t = threading.Thread(target=f); t.start(); go.wait(); time.sleep(0.01); d = os.dup(s.fileno()); t.join()
    use(d); use(s.fileno()); use(d)
elif kind == "fork during":
    go = threading.Event(); g = Gate()
    t = threading.Thread(target=lambda: (go.set(), s.connect(address))); t.start(); go.wait(); time.sleep(0.01)
    c = child(lambda: (g.wait(), use(s.fileno()))); t.join(); use(s.fileno()); g.open(); ended(c); use(s.fileno())
elif kind == "after":
    s.setblocking(False); e = s.connect_ex(address); assert e in (0, errno.EINPROGRESS), e
    g = Gate(); d = os.dup(s.fileno()); c = child(lambda: (g.wait(), use(s.fileno())))
    assert select.select([], [s], [], 20)[1]
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    s.setblocking(True); use(s.fileno()); g.open(); ended(c); use(d); use(s.fileno())
else: sys.exit("unknown kind")
