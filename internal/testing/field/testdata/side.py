# SPDX-License-Identifier: Apache-2.0
"""What the two sides of a case share. A case is started as
CASE.py server|client|both ADDRESS PORT DIRECTORY VARIANT. It prints "what: answer", a line a
question. Answers must be the same each time over TCP, so they have no numbers of processes,
ports or time. DIRECTORY is for both sides: what one tells there, the other waits for."""
import errno, os, select, socket, sys, time

role, addr, variant = sys.argv[1], sys.argv[2], sys.argv[5]
port, directory = int(sys.argv[3]), sys.argv[4]
LIMIT = 10  # seconds until a call counts as hanging
TIMES = 2 * LIMIT
SOL, TCP, IP = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
NAMES = [n for n in ("POLLIN", "POLLPRI", "POLLOUT", "POLLERR", "POLLHUP", "POLLRDHUP")]
ALL = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP


def log(what, answer):
    print(f"{what}: {answer}", flush=True)


def name(e):
    return "hangs" if isinstance(e, TimeoutError) else errno.errorcode.get(e.errno, repr(e))


def ask(what, f):
    """Logs what f returns, or the error with which it fails."""
    try:
        log(what, f())
    except OSError as e:
        log(what, name(e))


def tell(event):
    open(os.path.join(directory, event), "w").close()


def told(event, limit=TIMES):
    end = time.monotonic() + limit
    while not os.path.exists(os.path.join(directory, event)):
        if time.monotonic() > end:
            log("waited in vain for the other side", event)
            sys.exit(1)
        time.sleep(0.005)


def family():
    return socket.AF_INET6 if ":" in addr else socket.AF_INET


def listen(reuse=True, backlog=8, options=()):
    s = socket.socket(family())
    if reuse:
        s.setsockopt(SOL, socket.SO_REUSEADDR, 1)
    s.bind((addr, port))
    for o in options:
        s.setsockopt(*o)
    s.listen(backlog)
    tell("listening")
    return s


def accept(s=None, **how):
    """Returns the next connection of a listening socket. Blocking calls stay blocking calls:
    a timeout of Python would make the socket nonblocking."""
    c, _ = (s or listen(**how)).accept()
    c.setsockopt(SOL, socket.SO_RCVTIMEO, timeval())
    return c


def timeval(limit=LIMIT):
    import struct
    return struct.pack("ll", limit, 0)


def connect():
    s = socket.socket(family())
    s.connect((addr, port))
    s.setsockopt(SOL, socket.SO_RCVTIMEO, timeval())
    return s


def recv(s, n=100, flags=0):
    """recv whose hanging shows as such: EAGAIN of a blocking socket is the end of its time."""
    try:
        return s.recv(n, flags)
    except BlockingIOError:
        if flags & socket.MSG_DONTWAIT:
            raise
        raise TimeoutError


def read(s, limit=1 << 30):
    """All bytes until the end of file."""
    got = b""
    while len(got) < limit:
        b = recv(s, 65536)
        if not b:
            break
        got += b
    return got


def events(s, mask=ALL, wait=0):
    p = select.poll()
    p.register(s, mask)
    ev = p.poll(wait)
    return "|".join(n for n in NAMES if ev and ev[0][1] & getattr(select, n)) or "none"


def until(s, *want):
    """Waits until poll reports one of the events, and returns what it reports."""
    end = time.monotonic() + LIMIT
    while not any(w in events(s).split("|") for w in want):
        if time.monotonic() > end:
            break
        time.sleep(0.002)
    return events(s)


def main(**roles):
    roles[role]()
