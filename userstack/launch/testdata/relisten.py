# A server that closes its listening socket and binds another one to its port at once, after
# what its arguments name: WHAT ROUNDS. It prints what a program without a launcher would not
# see, and then "over".
import errno, os, signal, socket, struct, sys, threading, time

what, rounds = sys.argv[1], int(sys.argv[2])
port = 0

class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGALRM, interrupt)

def listen(group=False):
    global port
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if group: l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try: l.bind(('127.0.0.1', port))
    except OSError as e:
        print('bind:', errno.errorcode[e.errno], flush=True)
        port = 0
        l.bind(('127.0.0.1', port))
    l.listen(16)
    port = l.getsockname()[1]
    return l

def connect(): return socket.create_connection(('127.0.0.1', port))

def refused():
    try: connect().close()
    except ConnectionRefusedError: return
    print('a closed socket takes a connection', flush=True)

def accept_interrupted(l):
    try: # on a busy machine, the signal comes before the call
        signal.setitimer(signal.ITIMER_REAL, .003)
        l.accept(); print('accepted', flush=True)
    except Interrupted: pass

def idle_thread():
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

def killed(threaded):
    l = listen()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        if threaded: idle_thread()
        os.write(w, b'x')
        l.accept()
        os._exit(1)
    l.close()
    os.read(r, 1); os.close(r); os.close(w)
    time.sleep(.003)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def in_accept(l, n=1):
    got = []
    def wait():
        try: c, _ = l.accept(); got.append('connection'); c.close()
        except OSError as e: got.append(errno.errorcode[e.errno])
    ts = [threading.Thread(target=wait) for _ in range(n)]
    for t in ts: t.start()
    # A busy machine may not let a thread call accept() before the others go on.
    for t in ts:
        for _ in range(2000):
            with open('/proc/self/task/%d/syscall' % t.native_id) as f:
                if f.read().split()[0] in ('43', '288', '202', '242', '364'): break # accept, accept4
            time.sleep(.005)
        else: print('a thread does not call accept', flush=True)
    time.sleep(.1) # nobody says when the launcher has taken the call
    return ts, got

if what == 'threads': idle_thread()
for i in range(rounds):
    if what in ('interrupted', 'threads'):
        l = listen()
        accept_interrupted(l)
        l.close()
        if i % 2: refused()
    elif what == 'again':
        l = listen()
        l.setblocking(False)
        try: l.accept(); print('accepted', flush=True)
        except BlockingIOError: pass
        l.close()
    elif what == 'timeout':
        l = listen()
        l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 3000))
        try: l.accept(); print('accepted', flush=True)
        except BlockingIOError: pass
        l.close()
    elif what == 'killed': killed(False)
    elif what == 'killed threads': killed(True)
    elif what == 'one shot':
        l = listen()
        c = connect()
        if i % 2: l.setblocking(False)
        s, _ = l.accept()
        l.close(); s.close(); c.close()
    elif what == 'waits':
        # The connection comes after the call has begun to wait.
        l = listen()
        t = threading.Timer(.003, lambda: connect().close())
        t.start()
        s, _ = l.accept()
        l.close(); s.close()
        listen().close()
        t.join()
    elif what == 'closed':
        # As the kernel: a close does not end the call of another thread, and the port is in use.
        l = listen()
        ts, got = in_accept(l, 1 + i % 3)
        os.close(l.detach())
        x = socket.socket()
        x.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try: x.bind(('127.0.0.1', port)); print('the port is free', flush=True)
        except OSError: pass
        x.close()
        cs = [connect() for _ in ts]
        for t in ts: t.join()
        if got != ['connection'] * len(ts): print(got, flush=True)
        for c in cs: c.close()
    elif what == 'shut down':
        l = listen()
        ts, got = in_accept(l, 1 + i % 3)
        l.shutdown(socket.SHUT_RDWR)
        for t in ts: t.join()
        l.close()
        if got != ['EINVAL'] * len(ts): print(got, flush=True)
    elif what == 'group':
        # A dead member of a group gets no connection.
        l = listen(True)
        other = listen(True)
        accept_interrupted(l)
        l.close()
        for _ in range(8):
            c = connect()
            s, _ = other.accept()
            s.sendall(b'x')
            if c.recv(2) != b'x': print('reset', flush=True)
            s.close(); c.close()
        other.close()
    elif what == 'child closes':
        l = listen()
        pid = os.fork()
        if pid == 0:
            l.close()
            os._exit(0)
        os.waitpid(pid, 0)
        accept_interrupted(l)
        c = connect()
        s, _ = l.accept()
        l.close(); s.close(); c.close()
print('over', flush=True)
