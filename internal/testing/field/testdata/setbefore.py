# SPDX-License-Identifier: Apache-2.0
"""Options that are set before connect() and before listen() have their effect on the data alone:
the connection is there at once, and stays what it is."""
from side import *
import struct

SECOND = struct.pack("ll", 1, 0)
OPTIONS = {
    "low water": [(SOL, socket.SO_RCVLOWAT, 5000)],
    "small buffers": [(SOL, socket.SO_RCVBUF, 1), (SOL, socket.SO_SNDBUF, 1)],
    "small segments": [(TCP, socket.TCP_MAXSEG, 88)],
    "times": [(SOL, socket.SO_SNDTIMEO, SECOND), (TCP, socket.TCP_USER_TIMEOUT, 1000)],
    "peek offset": [(SOL, getattr(socket, "SO_PEEK_OFF", 42), 3)],
    "cork": [(TCP, socket.TCP_CORK, 1)],
    "window": [(TCP, socket.TCP_WINDOW_CLAMP, 2000)],
    "linger": [(SOL, socket.SO_LINGER, struct.pack("ii", 1, 30))],
    "hops": [(IP, socket.IP_TTL, 3)],
}
SIZE = 20000


def soon(f):
    """Whether f takes less time than any limit of a handshake."""
    begin = time.monotonic()
    r = f()
    log("soon", time.monotonic() - begin < 2)
    return r


def talk(c, first):
    def send():
        c.sendall(b"s" * SIZE)
        c.setsockopt(TCP, socket.TCP_CORK, 0)

    def take():
        ask("read", lambda: len(read(c, SIZE)))
    (send if first else take)()
    (take if first else send)()
    for o in OPTIONS[variant]:
        if o[1] not in (socket.SO_RCVBUF, socket.SO_SNDBUF, socket.TCP_CORK, socket.TCP_MAXSEG, socket.TCP_WINDOW_CLAMP):
            size = len(o[2]) if isinstance(o[2], bytes) else 0
            ask(f"option {o[1]}", lambda: c.getsockopt(o[0], o[1], size) if size else c.getsockopt(o[0], o[1]))


def server():
    l = listen(options=OPTIONS[variant])
    told("connecting")
    c = soon(lambda: accept(l))
    talk(c, False)
    c.close()


def client():
    s = socket.socket(family())
    for o in OPTIONS[variant]:
        s.setsockopt(*o)
    tell("connecting")
    soon(lambda: s.connect((addr, port)))
    s.setsockopt(SOL, socket.SO_RCVTIMEO, timeval())
    talk(s, True)
    ask("end", lambda: recv(s))


main(server=server, client=client)
