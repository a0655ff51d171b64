# SPDX-License-Identifier: Apache-2.0
"""What poll reports when the peer has closed: POLLHUP only when both directions are shut. A
reader that takes POLLHUP for the end (stunnel does) drops the data that it has not read."""
from side import *


def server():
    c = accept()
    c.sendall(b"x" * 10000)
    if variant == "close":
        c.close()
    if variant == "half":
        c.shutdown(socket.SHUT_WR)
    if variant == "exit":
        tell("over")
        os._exit(0)
    if variant == "reset":
        recv(c, 100, socket.MSG_PEEK)
        c.close()
    tell("over")
    if variant == "half":
        ask("data after the own half close", lambda: read(c))
        log("events when both directions are shut", until(c, "POLLHUP"))


def client():
    c = connect()
    if variant == "reset":
        c.sendall(b"unread")
    told("over")
    if variant == "reset":
        log("events", until(c, "POLLERR", "POLLHUP"))
        return
    log("events with unread data", until(c, "POLLRDHUP"))
    log("bytes", len(read(c)))
    log("events at the end of file", events(c))
    e = select.epoll()
    e.register(c, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    log("edges at the end of file", [bool(ev & select.EPOLLHUP) for _, ev in e.poll(0)])
    if variant == "half":
        ask("write", lambda: c.send(b"more"))
        log("events after it", events(c))
    c.shutdown(socket.SHUT_WR)
    log("events when both directions are shut", until(c, "POLLHUP"))


main(server=server, client=client)
