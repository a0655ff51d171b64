# SPDX-License-Identifier: Apache-2.0
"""The port of a listening socket is free as soon as it is closed, however its last accept has
ended: by a signal, without a connection, after a time, or with its thread or process."""
from side import *
import signal, threading


class Interrupted(Exception):
    pass


def interrupted(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise Interrupted


def once(l):
    if variant == "signal":
        try:
            # Again and again: a signal that comes just before the call does not end it.
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            l.accept()
        except Interrupted:
            pass
    elif variant == "again":
        l.setblocking(False)
        try:
            l.accept()
        except BlockingIOError:
            pass
    elif variant == "timeout":
        l.setsockopt(SOL, socket.SO_RCVTIMEO, __import__("struct").pack("ll", 0, 50000))
        try:
            l.accept()
        except BlockingIOError:
            pass
    elif variant == "process":
        pid = os.fork()
        if pid == 0:
            l.accept()
            os._exit(0)
        time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    elif variant == "poll":
        select.select([l], [], [], 0.02)
    l.close()


def both():
    signal.signal(signal.SIGALRM, interrupted)
    for _ in range(8):
        try:
            l = listen(reuse=False)
        except OSError as e:
            log("listen again", name(e))
            time.sleep(0.5)
        else:
            once(l)
    log("rounds", "done")


main(both=both)
