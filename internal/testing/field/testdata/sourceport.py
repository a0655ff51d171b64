# SPDX-License-Identifier: Apache-2.0
"""TIME_WAIT is at the side that closed first: a client with a fixed source port connects again
after the server has closed first, and a server without SO_REUSEADDR starts again after its
clients have closed first."""
from side import *

CONNS = 4
LOCAL = port + 1000


def server():
    if variant == "same source port":
        l = listen()
        for i in range(CONNS):
            c = accept(l)
            c.sendall(b"hi")
            c.close()
            tell(f"closed {i}")
        return
    l = listen(reuse=False)
    c = accept(l)
    if variant == "restart, server first":
        c.close()
        tell("closed")
        told("client closed")
    else:
        ask("end", lambda: recv(c))
        c.close()
    time.sleep(0.2)
    l.close()
    ask("start again", lambda: listen(reuse=False).getsockname()[0] == addr)


def client():
    if variant != "same source port":
        c = connect()
        if variant == "restart, server first":
            told("closed")
            ask("end", lambda: recv(c))
        c.close()
        tell("client closed")
        return
    me = None
    for i in range(CONNS):
        s = socket.socket(family())
        s.setsockopt(SOL, socket.SO_REUSEADDR, 1)
        s.setsockopt(SOL, socket.SO_RCVTIMEO, timeval())
        s.bind(("::" if ":" in addr else "0.0.0.0", LOCAL))
        try:
            s.connect((addr, port))
            log("connect", (recv(s), recv(s)))
            told(f"closed {i}")
        except OSError as e:
            log("connect", name(e))
        s.close()
        time.sleep(0.1)


main(server=server, client=client)
