# SPDX-License-Identifier: Apache-2.0
"""Tries the socket API on connections between two of it and prints what it
gets, a line a question: the same over SMC-R and over TCP, but for what the
test lists. Usage: sockapi.py server|client ADDRESS PORT"""
import array, errno, fcntl, os, select, signal, socket, struct, sys, tempfile, termios, time

import sockranges

S, T = socket.SOL_SOCKET, socket.IPPROTO_TCP
SIOCOUTQ, SIOCATMARK = 0x5411, 0x8905
SO_DOMAIN, SO_PROTOCOL = 39, 38
scenarios = {}


def scenario(f):
    scenarios[f.__name__] = f
    return f


class Side:
    """One side of a scenario: s is the connection, log prints an answer."""

    def __init__(self, role, name, s, ctl, listener):
        self.role, self.name, self.s, self.ctl, self.listener = role, name, s, ctl, listener
        self.client = role == "client"

    def log(self, what, value):
        print(f"{self.name}/{self.role}/{what}: {value}", flush=True)

    def sync(self):
        self.ctl.sendall(b".")
        assert self.ctl.recv(1) == b"."

    def ask(self, what, f):
        """Logs what f returns, or the errno it fails with."""
        try:
            v = f()
        except OSError as e:
            v = errno.errorcode.get(e.errno, repr(e)) if e.errno else repr(e)
        self.log(what, v)

    def options(self, *names):
        for name, level, opt in names:
            self.ask(name, lambda: self.s.getsockopt(level, opt))

    def ioctl(self, op):
        b = array.array("i", [0])
        fcntl.ioctl(self.s, op, b)
        return b[0]

    def wait(self, f, limit=5):
        end = time.monotonic() + limit
        while not f():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def events(self, mask):
        p = select.poll()
        p.register(self.s, mask)
        ev = p.poll(0)
        names = [n for n in ("POLLIN", "POLLOUT", "POLLPRI", "POLLERR", "POLLHUP", "POLLRDHUP")
                 if ev and ev[0][1] & getattr(select, n)]
        return "|".join(names) or "none"


ALL = select.POLLIN | select.POLLOUT | select.POLLPRI | select.POLLRDHUP


@scenario
def names(x):
    s = x.s
    x.log("family", s.family)
    x.ask("domain", lambda: s.getsockopt(S, SO_DOMAIN))
    x.ask("type", lambda: s.getsockopt(S, socket.SO_TYPE))
    x.ask("protocol", lambda: s.getsockopt(S, SO_PROTOCOL))
    x.ask("acceptconn", lambda: s.getsockopt(S, socket.SO_ACCEPTCONN))
    x.ask("getsockname", lambda: (len(s.getsockname()), s.getsockname()[0], s.getsockname()[1] > 0))
    x.ask("getpeername", lambda: (len(s.getpeername()), s.getpeername()[0], s.getpeername()[1] > 0))
    t = socket.fromfd(s.fileno(), s.family, s.type)
    x.ask("of a duplicate", lambda: t.getpeername() == s.getpeername())
    t.close()


@scenario
def keepalive(x):
    opts = [("SO_KEEPALIVE", S, socket.SO_KEEPALIVE), ("TCP_KEEPIDLE", T, socket.TCP_KEEPIDLE),
            ("TCP_KEEPINTVL", T, socket.TCP_KEEPINTVL), ("TCP_KEEPCNT", T, socket.TCP_KEEPCNT)]
    x.options(*opts)
    for i, (_, l, o) in enumerate(opts):
        x.s.setsockopt(l, o, i + 1)
    x.options(*opts)


@scenario
def tcp_options(x):
    opts = [("TCP_NODELAY", T, socket.TCP_NODELAY), ("TCP_CORK", T, socket.TCP_CORK),
            ("TCP_USER_TIMEOUT", T, 18), ("TCP_SYNCNT", T, socket.TCP_SYNCNT),
            ("TCP_LINGER2", T, socket.TCP_LINGER2), ("TCP_WINDOW_CLAMP", T, socket.TCP_WINDOW_CLAMP),
            ("TCP_DEFER_ACCEPT", T, socket.TCP_DEFER_ACCEPT), ("TCP_THIN_LINEAR_TIMEOUTS", T, 16)]
    for name, l, o in opts:
        v = 40000 if name == "TCP_WINDOW_CLAMP" else 1
        x.ask("set " + name, lambda: x.s.setsockopt(l, o, v))
        x.ask(name, lambda: x.s.getsockopt(l, o))
    x.ask("TCP_CONGESTION", lambda: x.s.getsockopt(T, 13, 16))
    x.ask("TCP_MAXSEG", lambda: x.s.getsockopt(T, socket.TCP_MAXSEG) > 500)
    x.ask("TCP_ULP", lambda: x.s.setsockopt(T, 31, b"nothing"))
    info = lambda: x.s.getsockopt(T, socket.TCP_INFO, 104)
    x.ask("TCP_INFO", lambda: (len(info()), info()[0]))
    x.ask("unknown", lambda: x.s.getsockopt(T, 9999))


@scenario
def ip_options(x):
    x.ask("set IP_TOS", lambda: x.s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10))
    x.options(("IP_TOS", socket.IPPROTO_IP, socket.IP_TOS), ("IP_TTL", socket.IPPROTO_IP, socket.IP_TTL),
              ("IP_MTU_DISCOVER", socket.IPPROTO_IP, 10), ("IPV6_V6ONLY", socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))


@scenario
def socket_options(x):
    x.options(("SO_REUSEADDR", S, socket.SO_REUSEADDR), ("SO_OOBINLINE", S, socket.SO_OOBINLINE),
              ("SO_RCVLOWAT", S, socket.SO_RCVLOWAT), ("SO_PRIORITY", S, socket.SO_PRIORITY),
              ("SO_BROADCAST", S, socket.SO_BROADCAST), ("SO_DONTROUTE", S, socket.SO_DONTROUTE),
              ("SO_ERROR", S, socket.SO_ERROR), ("SO_TIMESTAMP", S, 29), ("SO_MARK", S, socket.SO_MARK))
    for name, o, v in (("SO_REUSEADDR", socket.SO_REUSEADDR, 1), ("SO_PRIORITY", socket.SO_PRIORITY, 3),
                       ("SO_RCVLOWAT", socket.SO_RCVLOWAT, 7), ("SO_BROADCAST", socket.SO_BROADCAST, 1)):
        x.ask("set " + name, lambda: x.s.setsockopt(S, o, v))
        x.ask(name + " then", lambda: x.s.getsockopt(S, o))
    x.ask("SO_COOKIE", lambda: len(x.s.getsockopt(S, 57, 8)))
    x.ask("SO_PEERCRED", lambda: struct.unpack("iII", x.s.getsockopt(S, socket.SO_PEERCRED, 12))[0] == 0)
    x.ask("SO_BINDTODEVICE", lambda: x.s.getsockopt(S, socket.SO_BINDTODEVICE, 16))
    x.ask("unknown", lambda: x.s.getsockopt(S, 9999))
    x.ask("too short", lambda: x.s.setsockopt(S, socket.SO_KEEPALIVE, b"1"))


@scenario
def buffers(x):
    for name, o in (("SO_SNDBUF", socket.SO_SNDBUF), ("SO_RCVBUF", socket.SO_RCVBUF)):
        x.ask("set " + name, lambda: x.s.setsockopt(S, o, 50000))
        x.ask(name, lambda: x.s.getsockopt(S, o))
    x.sync()
    data = bytes(300000)
    if x.client:
        x.s.sendall(data)
    else:
        n = 0
        while n < len(data):
            n += len(x.s.recv(65536))
        x.log("received", n)


@scenario
def inherited(x):  # the listener has these set
    x.options(("SO_KEEPALIVE", S, socket.SO_KEEPALIVE), ("TCP_NODELAY", T, socket.TCP_NODELAY),
              ("TCP_KEEPIDLE", T, socket.TCP_KEEPIDLE))
    x.log("SO_LINGER", struct.unpack("ii", x.s.getsockopt(S, socket.SO_LINGER, 8)))


@scenario
def flags(x):
    s = x.s
    if x.client:
        s.sendall(b"hello")
        x.sync()
        x.sync()
        s.sendall(b"12345")
        time.sleep(0.1)
        s.sendall(b"67890")
        s.send(b"abc", socket.MSG_MORE)
        s.send(b"def", socket.MSG_DONTWAIT)
        x.sync()
        s.sendmsg([b"g", b"hi", b"", b"jkl"])
        with tempfile.TemporaryFile() as f:
            f.write(b"file" * 1000)
            f.flush()
            x.log("sendfile", os.sendfile(s.fileno(), f.fileno(), 0, 4000))
        x.sync()
        return
    x.sync()
    x.wait(lambda: x.ioctl(termios.FIONREAD) == 5)
    x.log("FIONREAD", x.ioctl(termios.FIONREAD))
    x.log("peek", s.recv(3, socket.MSG_PEEK))
    x.log("peek all", s.recv(10, socket.MSG_PEEK))
    x.log("recv", s.recv(10))
    x.ask("dontwait", lambda: s.recv(10, socket.MSG_DONTWAIT))
    x.sync()
    x.log("waitall", s.recv(10, socket.MSG_WAITALL))
    x.log("more", s.recv(6, socket.MSG_WAITALL))
    x.sync()
    x.log("recvmsg", s.recvmsg(6)[0::2])
    r, w = os.pipe()
    n = 0
    while n < 4000:
        m = os.splice(s.fileno(), w, 4000 - n)
        os.read(r, m)
        n += m
    x.log("splice", n)
    x.sync()


@scenario
def addresses(x):
    s, peer = x.s, x.s.getpeername()
    x.ask("sendto", lambda: s.sendto(b"hello", peer))
    x.ask("recvfrom", lambda: s.recvfrom(5))
    x.ask("sendto another host", lambda: s.sendto(b"there", (("192.0.2.1", 9), ("2001:db8::1", 9))[s.family == socket.AF_INET6]))
    x.ask("recvmsg", lambda: s.recvmsg(5)[3])
    s.sendall(b"end")
    x.ask("recvfrom_into", lambda: s.recvfrom_into(bytearray(3)))
    x.sync()
    s.shutdown(socket.SHUT_WR)
    x.ask("sendto after shutdown", lambda: s.sendto(b"x", peer))


@scenario
def timeouts(x):
    tv = struct.pack("ll", 0, 200000)
    x.s.setsockopt(S, socket.SO_RCVTIMEO, tv)
    x.s.setsockopt(S, socket.SO_SNDTIMEO, tv)
    x.log("SO_RCVTIMEO", struct.unpack("ll", x.s.getsockopt(S, socket.SO_RCVTIMEO, 16)))
    t = time.monotonic()
    x.ask("recv", lambda: x.s.recv(1))
    x.log("waited", 0.15 < time.monotonic() - t < 2)
    x.sync()
    if x.client:
        def fill():
            while True:
                x.s.send(bytes(1 << 20))
        x.ask("send", fill)
        x.log("queue", x.ioctl(SIOCOUTQ) > 0)
        x.log("poll full", x.events(select.POLLOUT))
    x.sync()


@scenario
def queue(x):
    if x.client:
        x.s.sendall(bytes(1000))
        x.sync()
        x.log("SIOCOUTQ", x.wait(lambda: x.ioctl(SIOCOUTQ) == 0))
    else:
        x.sync()
        x.wait(lambda: x.ioctl(termios.FIONREAD) == 1000)
        x.log("FIONREAD", x.ioctl(termios.FIONREAD))
        x.s.recv(1000, socket.MSG_WAITALL)
    x.sync()


@scenario
def nonblocking(x):
    x.s.setblocking(False)
    x.ask("recv", lambda: x.s.recv(1))
    x.log("poll", x.events(ALL))
    x.sync()
    if x.client:
        def fill():
            while True:
                x.s.send(bytes(1 << 20))
        x.ask("send", fill)
    x.sync()


@scenario
def half_close(x):
    if x.client:
        x.s.sendall(b"bye")
        x.s.shutdown(socket.SHUT_WR)
        x.ask("again", lambda: x.s.shutdown(socket.SHUT_WR))
        signal.signal(signal.SIGPIPE, lambda *_: x.log("SIGPIPE", 1))
        x.ask("send", lambda: x.s.send(b"x"))
        x.ask("send MSG_NOSIGNAL", lambda: x.s.send(b"x", socket.MSG_NOSIGNAL))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        x.sync()
        x.log("recv", x.s.recv(20, socket.MSG_WAITALL))
        x.log("poll", x.events(ALL))
    else:
        x.log("recv", x.s.recv(20, socket.MSG_WAITALL))
        x.log("eof", x.s.recv(1))
        x.log("poll", x.events(ALL))
        x.sync()
        x.s.sendall(b"still here")
        x.s.shutdown(socket.SHUT_WR)
    x.sync()


@scenario
def shut_read(x):
    x.ask("shutdown", lambda: x.s.shutdown(socket.SHUT_RD))
    x.ask("recv", lambda: x.s.recv(1))
    x.log("poll", x.events(ALL))
    x.sync()


@scenario
def peer_closes(x):
    if x.client:
        x.s.close()
        x.sync()
    else:
        x.wait(lambda: "POLLIN" in x.events(ALL))
        x.log("poll", x.events(ALL))
        x.log("recv", x.s.recv(1))
        x.sync()
        signal.signal(signal.SIGPIPE, lambda *_: x.log("SIGPIPE", 1))
        x.log("fails", x.wait(lambda: fails(lambda: x.s.send(b"x"))))
        x.ask("send", lambda: x.s.send(b"x"))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    x.sync()


def fails(f):
    try:
        f()
    except OSError:
        return True
    return False


@scenario
def reset(x):
    if x.client:
        x.s.setsockopt(S, socket.SO_LINGER, struct.pack("ii", 1, 0))
        x.log("SO_LINGER", struct.unpack("ii", x.s.getsockopt(S, socket.SO_LINGER, 8)))
        x.s.close()
        x.sync()
        return
    x.ask("recv", lambda: x.s.recv(1))
    x.sync()
    x.log("poll", x.events(ALL))
    x.ask("SO_ERROR", lambda: x.s.getsockopt(S, socket.SO_ERROR))
    x.ask("recv again", lambda: x.s.recv(1))
    x.ask("send", lambda: x.s.send(b"x"))
    x.ask("getpeername", lambda: x.s.getpeername())


@scenario
def reset_unread(x):
    """A close with data unread resets; what had arrived before is lost."""
    if x.client:
        x.s.sendall(b"unread")
        x.sync()
        x.ask("recv", lambda: x.s.recv(1))
    else:
        x.wait(lambda: x.ioctl(termios.FIONREAD) == 6)
        x.s.close()
        x.sync()
    x.sync()


@scenario
def reset_after_shutdown(x):
    if x.client:
        x.s.shutdown(socket.SHUT_WR)
        x.sync()
        x.ask("recv", lambda: x.s.recv(1))
    else:
        x.log("eof", x.s.recv(1))
        x.s.sendall(b"")
        x.s.setsockopt(S, socket.SO_LINGER, struct.pack("ii", 1, 0))
        x.sync()
        x.s.close()
    x.sync()


@scenario
def linger(x):
    if x.client:
        x.s.setsockopt(S, socket.SO_LINGER, struct.pack("ii", 1, 5))
        x.s.sendall(bytes(100000))
        t = time.monotonic()
        x.s.close()
        x.log("close is prompt", time.monotonic() - t < 4)
    else:
        n = 0
        while d := x.s.recv(65536):
            n += len(d)
        x.log("received", n)
    x.sync()


@scenario
def urgent(x):
    s = x.s
    if x.client:
        x.sync()
        s.send(b"!", socket.MSG_OOB)
        x.sync()
        s.sendall(b"abc")
        s.send(b"de?", socket.MSG_OOB)
        x.sync()
        s.sendall(b"ghi")
        x.sync()
        s.send(b"12#", socket.MSG_OOB)
        x.sync()
        s.sendall(b"34")
        x.sync()
        return
    got = []
    signal.signal(signal.SIGURG, lambda *_: got.append(1))
    fcntl.fcntl(s, fcntl.F_SETOWN, os.getpid())
    x.ask("none", lambda: s.recv(1, socket.MSG_OOB))
    x.log("no mark", x.ioctl(SIOCATMARK))
    x.sync()
    x.log("select", [len(r) for r in select.select([], [], [s], 5)])
    x.log("SIGURG", x.wait(lambda: got))
    x.log("mark", x.ioctl(SIOCATMARK))
    x.log("alone", s.recv(5, socket.MSG_OOB))
    x.ask("twice", lambda: s.recv(1, socket.MSG_OOB))
    x.sync()
    x.sync()
    x.wait(lambda: "POLLPRI" in x.events(ALL))
    x.log("poll", x.events(ALL))
    x.log("before", s.recv(100))
    x.log("mark then", x.ioctl(SIOCATMARK))
    x.log("urgent", s.recv(5, socket.MSG_OOB))
    x.sync()
    x.log("behind", s.recv(3, socket.MSG_WAITALL))
    s.setsockopt(S, socket.SO_OOBINLINE, 1)
    x.sync()
    x.wait(lambda: "POLLPRI" in x.events(ALL))
    x.ask("inline", lambda: s.recv(1, socket.MSG_OOB))
    x.log("inline before", s.recv(100))
    x.log("inline mark", x.ioctl(SIOCATMARK))
    x.log("inline byte", s.recv(1))
    x.log("inline mark then", x.ioctl(SIOCATMARK))
    x.sync()
    x.log("inline behind", s.recv(2, socket.MSG_WAITALL))
    signal.signal(signal.SIGURG, signal.SIG_IGN)


@scenario
def urgent_ignored(x):
    """A reader who never asks for urgent bytes does not see them. One that is
    sent before the last has left would make that a byte like others: each has
    arrived before the next."""
    if x.client:
        for i in range(5):
            x.s.sendall(b"data")
            x.s.send(b"!", socket.MSG_OOB)
            x.sync()
        x.s.shutdown(socket.SHUT_WR)
    else:
        b = b""
        for i in range(5):
            b += x.s.recv(4, socket.MSG_WAITALL)
            x.log(f"arrived {i}", x.wait(lambda: "POLLPRI" in x.events(ALL), 15))
            x.sync()
        while d := x.s.recv(100):
            b += d
        x.log("stream", b)
    x.sync()


def dial(addr, port, limit=15):
    end = time.monotonic() + limit
    while True:
        try:
            return socket.create_connection((addr, port), 20)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def main():
    role, port, l = sys.argv[1], int(sys.argv[-1]), None
    address = sys.argv[2]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.alarm(100)
    if role == "server":
        l = socket.create_server((address, port), family=family)
        ctl, _ = l.accept()
    else:
        ctl = dial(address, port)
    ctl.settimeout(20)
    only = os.environ.get("SOCKAPI")
    if os.environ.get("SOCKRANGES"):
        scenarios.clear()
        scenarios.update(sockranges.scenarios)
    for name, run in scenarios.items():
        if only and name not in only.split(","):
            continue
        if role == "server":
            if name == "inherited":
                l.setsockopt(S, socket.SO_KEEPALIVE, 1)
                l.setsockopt(T, socket.TCP_NODELAY, 1)
                l.setsockopt(T, socket.TCP_KEEPIDLE, 77)
                l.setsockopt(S, socket.SO_LINGER, struct.pack("ii", 1, 3))
            if name == "saved_syn":
                l.setsockopt(T, 27, 1)
            ctl.sendall(b"!")
            s, _ = l.accept()
            if name == "inherited":
                for lv, o in ((S, socket.SO_KEEPALIVE), (T, socket.TCP_NODELAY)):
                    l.setsockopt(lv, o, 0)
                l.setsockopt(S, socket.SO_LINGER, struct.pack("ii", 0, 0))
        else:
            assert ctl.recv(1) == b"!"
            s = socket.socket(family)
            s.connect((address, port))
        s.settimeout(None)
        s.setsockopt(S, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
        x = Side(role, name, s, ctl, l)
        try:
            run(x)
        except Exception as e:
            x.log("FAILED", repr(e))
            raise
        x.sync()
        x.s.close()
    print("done", flush=True)


main()
