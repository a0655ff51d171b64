# SPDX-License-Identifier: Apache-2.0
"""A server whose accept() is interrupted by a timer and restarted, again and again, until a client
comes.

usage: alarmed.py SECONDS
"""
import os, signal, socket, sys, time

listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    time.sleep(float(sys.argv[1]))
    c = socket.create_connection(listener.getsockname())
    c.settimeout(50)
    os._exit(0 if c.recv(10) == b"x" else 1)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
c = listener.accept()[0]
signal.setitimer(signal.ITIMER_REAL, 0)
c.sendall(b"x")
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
