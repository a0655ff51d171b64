# SPDX-License-Identifier: Apache-2.0
"""A server and its client. The calls of one of them are interrupted by signals at any moment.

usage: interrupted.py server|client|error CONNECTIONS

Each connection ends when the server closes it, and neither has more descriptors at the end than
before. With "error", all connections are refused.
"""
import errno, os, random, select, signal, socket, sys, time

which, n = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0), backlog=16)


def interrupted(work):
    """Does work while signals come, and compares the descriptors."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    before = sorted(os.listdir("/proc/self/fd"))
    target = os.getpid()
    sender = os.fork()
    if sender == 0:
        while os.getppid() == target:
            for i in range(20):
                os.kill(target, signal.SIGALRM)
                time.sleep(random.uniform(0, 0.0001))
            time.sleep(0.005)  # calls that are all interrupted before their answer would never end
        os._exit(0)
    work()
    os.kill(sender, signal.SIGKILL)
    os.waitpid(sender, 0)
    after = sorted(os.listdir("/proc/self/fd"))
    if after != before:
        sys.exit("descriptors %s, and %s before" % (after, before))


def connect():
    for i in range(n):
        # No timeout: it would make the socket non-blocking.
        c = socket.socket()
        try:
            c.connect(to)
        except OSError as e:
            sys.exit("connect %d: %s" % (i, e))
        c.settimeout(50)
        c.sendall(b"x")
        if c.recv(10) != b"x" or c.recv(10) != b"":
            sys.exit("connection %d: not the answer and the end" % i)
        c.close()


def accept():
    for i in range(n):
        c = listener.accept()[0]
        c.sendall(c.recv(10))
        c.close()


def refused():
    for i in range(n):
        c = socket.socket()
        c.setblocking(False)
        e = c.connect_ex(to)
        if e == errno.EINPROGRESS:
            p = select.poll()
            p.register(c, select.POLLOUT)
            p.poll(50000)
            e = c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if e != errno.ECONNREFUSED:
            sys.exit("connect %d: error %d" % (i, e))
        c.close()


to = listener.getsockname()
if which == "error":
    listener.close()
    interrupted(refused)
    sys.exit(0)
client = os.fork()
if client == 0:
    interrupted(connect) if which == "client" else connect()
    sys.exit(0)
interrupted(accept) if which == "server" else accept()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]))
