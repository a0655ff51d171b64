# SPDX-License-Identifier: Apache-2.0
"""The first write after the peer's close is accepted, and only what comes back for it is an
error. So a client that writes its request late still reads the early answer."""
from side import *
import signal


def server():
    c = accept()
    c.sendall(b"-ERR max number of clients reached")
    if variant == "shut_rd":
        c.shutdown(socket.SHUT_RD)
        tell("over")
        told("written")
    elif variant == "unread":
        recv(c, 100, socket.MSG_PEEK)
    c.close()
    tell("over")
    told("done")


def client():
    c = connect()
    if variant == "unread":
        c.sendall(b"unread")
        told("over")
        until(c, "POLLHUP", "POLLERR")
        ask("SO_ERROR", lambda: errno.errorcode[c.getsockopt(SOL, socket.SO_ERROR)])
    elif variant == "signal":
        told("over")
        until(c, "POLLRDHUP")
        if os.fork() == 0:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            c.send(b"PING")
            os._exit(7)
        log("a child without a handler of SIGPIPE ends with", os.waitstatus_to_exitcode(os.wait()[1]))
    else:
        told("over")
        if variant == "data":
            until(c, "POLLRDHUP")
        ask("first write", lambda: c.send(b"PING"))
        if variant == "shut_rd":
            time.sleep(0.1)
            ask("second write", lambda: c.send(b"PING"))
            tell("written")
        else:
            until(c, "POLLHUP", "POLLERR")
        ask("data", lambda: recv(c))
        if variant == "data":
            ask("after the data", lambda: recv(c))
            ask("second write", lambda: c.send(b"PING", socket.MSG_NOSIGNAL))
    tell("done")


main(server=server, client=client)
