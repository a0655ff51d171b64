# SPDX-License-Identifier: Apache-2.0
"""Ways to end: SO_LINGER with zero resets, also when a child has the descriptor too, and the
reset is there as soon as the peer can know of the close."""
from side import *
import struct


def closer(c):
    told("connected")
    c.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if variant.startswith("copy"):
        d = c.dup()
        c.close()
        d.close()
    elif variant.startswith("exit"):
        tell("over")
        os._exit(0)
    else:
        c.close()
    tell("over")


def reader(c):
    tell("connected")
    told("over")
    log("events", until(c, "POLLERR", "POLLHUP"))
    ask("read", lambda: recv(c))
    ask("read again", lambda: recv(c))


def server():
    (closer if variant.endswith("server") else reader)(accept())


def client():
    (closer if variant.endswith("client") else reader)(connect())


main(server=server, client=client)
