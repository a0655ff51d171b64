# SPDX-License-Identifier: Apache-2.0
"""A descriptor is duplicated before connect, and the duplicate is used afterwards."""
from side import *


def server():
    c = accept()
    ask("data", lambda: recv(c, 4))
    c.sendall(b"ok")
    c.close()


def client():
    a, s = (addr, port), socket.socket(family())
    t = s
    if variant == "dup":
        t = s.dup()
        s.connect(a)
    if variant == "dup2":
        os.dup2(s.fileno(), 50)
        s.connect(a)
        t = socket.socket(fileno=50)
    if variant == "child connects":
        if os.fork() == 0:
            s.connect(a)
            os._exit(0)
        os.wait()
    if variant == "child uses":
        if (pid := os.fork()) != 0:
            s.connect(a)
            tell("connected")
            os.waitpid(pid, 0)
            return
        told("connected")
    if variant == "exec":
        os.set_inheritable(s.fileno(), True)
        if (pid := os.fork()) == 0:
            code = "import socket,sys; socket.socket(fileno=%d).connect((sys.argv[1],int(sys.argv[2])))" % s.fileno()
            os.execv(sys.executable, [sys.executable, "-c", code, addr, str(port)])
        os.waitpid(pid, 0)
    if variant == "passed":
        x, y = socket.socketpair()
        if os.fork() == 0:
            s.close()
            _, f, _, _ = socket.recv_fds(y, 1, 1)
            socket.socket(fileno=f[0]).connect(a)
            os._exit(0)
        socket.send_fds(x, [b"x"], [s.fileno()])
        os.wait()
    t.setsockopt(SOL, socket.SO_RCVTIMEO, timeval(6))
    ask("write", lambda: t.send(b"data"))
    ask("answer", lambda: recv(t, 5))
    ask("end", lambda: recv(t, 5))
    log("stdout", "done")


main(server=server, client=client)
