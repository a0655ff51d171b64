# SPDX-License-Identifier: Apache-2.0
"""sendto and sendmsg with an address on a connected socket: TCP ignores the address."""
from side import *


def server():
    c = accept()
    log("data", read(c))


def client():
    c = socket.socket(family())
    ask("before connect", lambda: c.sendto(b"x", socket.MSG_NOSIGNAL, (addr, port)))
    c = connect()
    ask("peer's address", lambda: c.sendto(b"a", (addr, port)))
    ask("another address", lambda: c.sendto(b"b", (addr, port + 1)))
    ask("with a flag", lambda: c.sendto(b"c", socket.MSG_DONTWAIT, (addr, port)))
    ask("sendmsg", lambda: c.sendmsg([b"d", b"e"], [], 0, (addr, port)))
    ask("sendmsg without address", lambda: c.sendmsg([b"f"]))
    c.shutdown(socket.SHUT_WR)
    ask("after shutdown", lambda: c.sendto(b"x", socket.MSG_NOSIGNAL, (addr, port)))
    ask("recvfrom", lambda: c.recvfrom(10))


main(server=server, client=client)
