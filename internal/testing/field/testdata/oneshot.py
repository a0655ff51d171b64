# SPDX-License-Identifier: Apache-2.0
"""A program that writes, closes and ends at once (nc -l <file, inetd's daytime, CGI): what it
has written and closed arrives, whatever becomes of the program."""
from side import *
import signal

how, writer = variant.split(" of the ")


def write(c):
    if how == "end after an option":
        c.getsockopt(SOL, socket.SO_TYPE)
    c.sendall(b"payload" * (40000 if how == "end with much data" else 1))
    if how == "end with unread data":
        recv(c, 1, socket.MSG_PEEK)
    if how != "end without close":
        c.close()
    if how == "later end":
        time.sleep(1)
    if how == "death":
        tell("ended")
        os.kill(os.getpid(), signal.SIGKILL)
    tell("ended")
    os._exit(0)


def reader(c):
    if how == "end with unread data":
        c.sendall(b"unread")
        ask("data", lambda: recv(c, 7))
        told("ended")
        until(c, "POLLHUP", "POLLERR")
        ask("end", lambda: recv(c))
        return
    told("ended")
    try:
        got = read(c)
        log("bytes", len(got))
        log("right", got == b"payload" * (len(got) // 7))
    except OSError as e:
        log("failed", name(e))


def server():
    (write if writer == "server" else reader)(accept())


def client():
    (write if writer == "client" else reader)(connect())


main(server=server, client=client)
