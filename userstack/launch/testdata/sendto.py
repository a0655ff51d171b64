# SPDX-License-Identifier: Apache-2.0
"""Calls sendto() with an address on a connection and prints what it gets, a line a question.
Usage: sendto.py ADDRESS:PORT of a server that echoes"""
import ctypes, errno, hashlib, os, signal, socket, struct, sys, threading, time

address = sys.argv[1].rsplit(":", 1)
address = (address[0], int(address[1]))
libc = ctypes.CDLL(None, use_errno=True)
libc.sendto.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.sendto.restype = ctypes.c_ssize_t
signal.alarm(100)
elsewhere = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(9), bytes([192, 0, 2, 1]))
name = ctypes.create_string_buffer(elsewhere + bytes(200))


def raw(s, data, flags=0, addr=name, size=16, count=None):
    n = libc.sendto(s.fileno(), data, len(data) if count is None else count, flags, addr, size)
    return n if n >= 0 else errno.errorcode[ctypes.get_errno()]


def ask(what, f):
    try:
        v = f()
    except OSError as e:
        v = errno.errorcode.get(e.errno, repr(e))
    print(f"{what}: {v}", flush=True)


def connected():
    s = socket.create_connection(address)
    s.settimeout(None)
    return s


def got(s, size):
    b = b""
    while len(b) < size:
        try:
            more = s.recv(65536)
        except BlockingIOError:  # another thread has set O_NONBLOCK
            time.sleep(0.001)
            continue
        if not more:
            break
        b += more
    return b


s = connected()
ask("sendto", lambda: (s.sendto(b"hello", address), got(s, 5)))
ask("another address", lambda: (raw(s, b"there"), got(s, 5)))
ask("a short address", lambda: (raw(s, b"short", size=3), got(s, 5)))
ask("the longest address", lambda: (raw(s, b"long", size=128), got(s, 4)))
ask("an address that is too long", lambda: raw(s, b"x", size=129))
ask("a negative length", lambda: raw(s, b"x", size=-1))
ask("no length", lambda: (raw(s, b"none", size=0), got(s, 4)))
ask("no address", lambda: (raw(s, b"null", addr=None), got(s, 4)))
ask("an address that is not there", lambda: raw(s, b"x", addr=8))
ask("data that are not there", lambda: raw(s, b"x", addr=name) and libc.sendto(s.fileno(), 8, 4, 0, name, 16) and errno.errorcode[ctypes.get_errno()])
ask("the x", lambda: got(s, 1))
import mmap
m = mmap.mmap(-1, 2 * mmap.PAGESIZE)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert libc.mprotect(at + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
ask("data that end in between", lambda: libc.sendto(s.fileno(), at + mmap.PAGESIZE - 100, 200, 0, name, 16) and errno.errorcode[ctypes.get_errno()])
ask("nothing", lambda: raw(s, b""))
ask("MSG_MORE", lambda: (raw(s, b"more", socket.MSG_MORE), raw(s, b"over"), got(s, 8)))
ask("recvfrom", lambda: (raw(s, b"from"), s.recvfrom(4)))
d = s.dup()
ask("a duplicate", lambda: (raw(d, b"dup"), got(s, 3)))
if len(sys.argv) > 2 and sys.argv[2] == "sendmsg":
    ask("sendmsg", lambda: (s.sendmsg([b"message"], [], 0, address), got(s, 7)))

# Everything arrives, in order, also when signals interrupt the call.
big = os.urandom(3 << 20)


def stream(send, slow=True):
    s = connected()
    received = []

    def receive():
        if slow:
            time.sleep(0.3)
        received.append(got(s, len(big)))
    t = threading.Thread(target=receive)
    t.start()
    sent = send(s)
    s.shutdown(socket.SHUT_WR)
    t.join()
    return sent, hashlib.sha256(received[0]).digest() == hashlib.sha256(big).digest()


def pieces(s, size, flags=0):
    sent = 0
    while sent < len(big):
        n = raw(s, big[sent:sent + size], flags)
        if n in ("EAGAIN", "EINTR"):
            time.sleep(0.001)
            continue
        if isinstance(n, str):
            return n
        sent += n
    return sent


ask("large", lambda: stream(lambda s: raw(s, big)))
ask("pieces", lambda: stream(lambda s: pieces(s, 100000)))
ask("MSG_DONTWAIT", lambda: stream(lambda s: pieces(s, 1 << 20, socket.MSG_DONTWAIT)))


def nonblocking(s):
    s.setblocking(False)
    sent = pieces(s, 1 << 20)
    s.setblocking(True)
    return sent


ask("non-blocking", lambda: stream(nonblocking))


def signalled(restart):
    def f(s):
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, not restart)
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
        try:
            return pieces(s, 200000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(100)
    return f


ask("signals, SA_RESTART", lambda: stream(signalled(True)))
ask("signals", lambda: stream(signalled(False)))


def full(s, flags):
    """Fills the buffers, up to which the server reads nothing."""
    n = 0
    while isinstance(m := raw(s, bytes(1 << 16), flags), int):
        n += m
    return m, n > 0


s = connected()
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 200000))
ask("SO_SNDTIMEO", lambda: full(s, 0))
ask("full", lambda: full(s, socket.MSG_DONTWAIT)[0])
s.close()

s = connected()
s.shutdown(socket.SHUT_WR)
caught = []
signal.signal(signal.SIGPIPE, lambda *_: caught.append("SIGPIPE"))


def pipe(flags=0):
    e = raw(s, b"x", flags)
    end = time.monotonic() + 5 * (flags == 0)
    while not caught and time.monotonic() < end:
        time.sleep(0.001)
    c = caught[:]
    caught.clear()
    return e, c


ask("after shutdown", pipe)
ask("after shutdown, MSG_NOSIGNAL", lambda: pipe(socket.MSG_NOSIGNAL))
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    raw(s, b"x")
    time.sleep(5)
    os._exit(0)
ask("killed by SIGPIPE", lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v.bind(("127.0.0.1", 0))
ask("UDP", lambda: (u.sendto(b"datagram", v.getsockname()), v.recv(99)))
ask("unconnected", lambda: raw(socket.socket(), b"x", socket.MSG_NOSIGNAL))
