# SPDX-License-Identifier: Apache-2.0
#
# A client of package traffic that uses the C library: non-blocking sockets and one epoll
# set. Its commands are "start epoll N", for N connections at a time, and "stop". It writes
# lines of type traffic.Line.
import errno, json, os, random, select, socket, sys, time
from datetime import datetime, timezone

HUNG = 60.0  # seconds without any progress
KIND = "epoll"
host, port = sys.argv[1].rsplit(":", 1)
rng = random.Random(os.getpid())
ep, conns, tally = select.epoll(), {}, dict(tried=0, conns=0, open=0, bytes=0, lost=0, slowest=0)
wanted, out = 0, sys.stdout


def say(**line):
    print(json.dumps(line), file=out, flush=True)


def stamp(t):
    return datetime.fromtimestamp(t, timezone.utc).isoformat()


class Conn:
    def __init__(self):
        self.began = self.moved = time.time()
        self.s = socket.socket()
        self.s.setblocking(False)
        self.left = rng.randrange(1, 200)  # requests
        self.ready = False
        tally["tried"] += 1
        conns[self.s.fileno()] = self
        ep.register(self.s.fileno(), select.EPOLLIN | select.EPOLLOUT)
        tally["open"] += 1
        code = self.s.connect_ex((host, int(port)))
        self.next()
        if code not in (0, errno.EINPROGRESS):
            self.end("refused", os.strerror(code))

    def next(self):
        self.want = rng.randbytes(rng.randrange(1, 20000))
        self.sent, self.got = 0, 0
        self.data = self.want

    def end(self, failure=None, text=""):
        if failure:
            say(failure={"kind": KIND, "class": failure, "began": stamp(self.began), "at": stamp(time.time()), "error": text})
        ep.unregister(self.s.fileno())
        del conns[self.s.fileno()]
        self.s.close()
        tally["open"] -= 1

    def event(self, bits):
        try:
            if bits & select.EPOLLERR:
                code = self.s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
            if bits & select.EPOLLOUT and self.sent < len(self.data):
                self.sent += self.s.send(memoryview(self.data)[self.sent:])
                self.moved = time.time()
                if self.sent == len(self.data):
                    ep.modify(self.s.fileno(), select.EPOLLIN)
            if bits & (select.EPOLLIN | select.EPOLLHUP):
                self.read()
        except BlockingIOError:
            pass
        except OSError as e:
            self.end("ended" if self.ready else "refused", str(e))

    def read(self):
        b = self.s.recv(65536)
        self.moved = time.time()
        if not b:
            return self.end("corrupted", "the stream ended after %d of %d bytes" % (self.got, len(self.want)))
        if b != self.want[self.got:self.got + len(b)]:
            return self.end("corrupted", "other bytes than were sent, behind byte %d" % self.got)
        self.got += len(b)
        tally["bytes"] += len(b)
        if self.got < len(self.want):
            return
        if not self.ready:
            self.ready = True
            tally["conns"] += 1
            tally["slowest"] = max(tally["slowest"], int(1e9 * (time.time() - self.began)))
        self.left -= 1
        if self.left <= 0 or not wanted:
            return self.end()
        self.next()
        ep.modify(self.s.fileno(), select.EPOLLIN | select.EPOLLOUT)


def command(text):
    global wanted
    f = text.split()
    if f[0] == "stop":
        wanted = 0
        deadline = time.time() + HUNG + 10
        while conns and time.time() < deadline:
            turn()
    else:
        wanted = int(f[2])
    say(tallies={KIND: tally})
    say(done=text)


def turn():
    for fd, bits in ep.poll(0.1):
        if fd == 0:
            line = sys.stdin.readline()
            if not line:
                sys.exit(0)
            command(line.rstrip("\n"))
        elif fd in conns:
            conns[fd].event(bits)
    for c in list(conns.values()):
        if time.time() - c.moved > HUNG:
            c.end("hung", "nothing for %d s" % HUNG)


ep.register(0, select.EPOLLIN)
told = 0
while True:
    turn()
    while len(conns) < wanted:
        Conn()
        if rng.random() < 0.5:
            break
    if time.time() - told > 1:
        told = time.time()
        say(tallies={KIND: tally})
    time.sleep(0.005)
