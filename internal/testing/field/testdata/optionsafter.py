# SPDX-License-Identifier: Apache-2.0
"""Options keep their values when the peer has closed, and can still be set."""
from side import *

OPTIONS = [("TCP_KEEPIDLE", TCP, socket.TCP_KEEPIDLE, 5), ("TCP_KEEPINTVL", TCP, socket.TCP_KEEPINTVL, 6),
           ("TCP_KEEPCNT", TCP, socket.TCP_KEEPCNT, 7), ("SO_KEEPALIVE", SOL, socket.SO_KEEPALIVE, 1),
           ("TCP_NODELAY", TCP, socket.TCP_NODELAY, 1), ("TCP_USER_TIMEOUT", TCP, 18, 3000),
           ("IP_TOS", IP, socket.IP_TOS, 16), ("SO_PRIORITY", SOL, socket.SO_PRIORITY, 3),
           ("SO_RCVLOWAT", SOL, socket.SO_RCVLOWAT, 1), ("SO_OOBINLINE", SOL, socket.SO_OOBINLINE, 1)]


def closer(c):
    told("set")
    c.close()
    tell("over")


def keeper(c):
    for _, level, option, value in OPTIONS:
        c.setsockopt(level, option, value)
    tell("set")
    told("over")
    until(c, "POLLRDHUP")
    for n, level, option, _ in OPTIONS:
        ask(n, lambda: c.getsockopt(level, option))
    for n, level, option, value in OPTIONS:
        ask("set " + n, lambda: c.setsockopt(level, option, value + 1 if value > 1 else 0))
        ask(n + " then", lambda: c.getsockopt(level, option))
    ask("peer", lambda: c.getpeername()[0] == addr or role == "server")
    c.shutdown(socket.SHUT_WR)
    until(c, "POLLHUP")
    for n, level, option, _ in OPTIONS:
        ask(n + " when both have ended", lambda: c.getsockopt(level, option))


def client():
    (keeper if variant == "client" else closer)(connect())


def server():
    (keeper if variant == "server" else closer)(accept())


main(server=server, client=client)
