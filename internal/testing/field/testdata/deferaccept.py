# SPDX-License-Identifier: Apache-2.0
"""TCP_DEFER_ACCEPT, which Apache sets: a connection is accepted when it has data, and then at
once. The time that a server would lose is 1 s a connection, or 15 s with larger values."""
from side import *

CONNS = 4


def server():
    l = listen(options=[(TCP, socket.TCP_DEFER_ACCEPT, 30 if variant == "silent" else int(variant))])
    for _ in range(CONNS):
        c = accept(l)
        if variant == "silent":
            ask("data at accept", lambda: recv(c, 100, socket.MSG_DONTWAIT))
        else:
            ask("data", lambda: recv(c))
        c.sendall(b"answer")
        c.close()


def client():
    start = time.monotonic()
    for _ in range(CONNS):
        c = connect()
        if variant == "silent":
            time.sleep(0.3)
        c.sendall(b"hello")
        ask("answer", lambda: recv(c))
        c.close()
    log("answered at once", time.monotonic() - start < 3)


main(server=server, client=client)
