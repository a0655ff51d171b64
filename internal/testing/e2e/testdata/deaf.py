# Usage: deaf.py ADDRESS PORT PROCESSES, beneath smcr run, as the root of a user and mount namespace.
# Has a FUSE file that answers no read, and makes each trapped call with a pointer into this file, in
# a thread of its own in each process. Says "stuck" a second before they begin: then a process may
# not even get memory any more. Only the first process has the server's end of FUSE, so all end with it.
import ctypes, os, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
addr, processes = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])

dev = os.open('/dev/fuse', os.O_RDWR | os.O_CLOEXEC)
path = '/tmp'
opts = b'fd=%d,rootmode=40700,user_id=0,group_id=0' % dev
if libc.mount(b'deaf', path.encode(), b'fuse', 2 | 4, opts):
    print('no FUSE:', os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()

def attr(ino):
    mode = 0o40700 if ino == 1 else 0o100600
    return struct.pack('<QQQQQQIIIIIIIIII', ino, 65536, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

def serve():
    while True:
        try: b = os.read(dev, 1 << 17)
        except OSError: return
        op, unique, node = struct.unpack_from('<IQQ', b, 4)
        out, errno = b'', 0
        if op in (15, 2, 42): continue # reads are not answered, and what has no answer
        elif op == 26: out = struct.pack('<II', 7, 31) + bytes(12) + struct.pack('<I', 4096) + bytes(40)
        elif op == 3: out = bytes(16) + attr(node)
        elif op == 1: out = struct.pack('<QQQQII', 2, 0, 0, 0, 0, 0) + attr(2)
        elif op in (14, 27): out = bytes(16)
        elif op in (18, 25, 29): pass
        else: errno = -38
        os.write(dev, struct.pack('<IiQ', 16 + len(out), errno, unique) + out)

if os.fork():
    serve()
    sys.exit()
libc.prctl(1, 9) # end with the server
server, dev = dev, -1
os.close(server)
fd = os.open(path + '/file', os.O_RDWR)
ready = os.pipe()

def begin(call):
    time.sleep(1)
    call()

def process():
    mem = libc.mmap(None, 65536, 3, 2, fd, 0)
    if mem == ctypes.c_void_p(-1).value: os._exit(1)
    conn = socket.create_connection(addr)
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(8)
    fresh = lambda: socket.socket().detach()
    at = lambda i: ctypes.c_void_p(mem + 4096 * i)
    size = ctypes.c_uint(16)
    calls = [
        lambda: libc.connect(fresh(), at(0), 16),
        lambda: libc.getsockname(conn.fileno(), at(1), ctypes.byref(size)),
        lambda: libc.getpeername(conn.fileno(), ctypes.byref(ctypes.create_string_buffer(16)), at(2)),
        lambda: libc.setsockopt(conn.fileno(), 6, 4, at(3), 4),
        lambda: libc.getsockopt(conn.fileno(), 6, 4, at(4), ctypes.byref(size)),
        lambda: libc.ioctl(conn.fileno(), 0x541b, at(5)),
        lambda: libc.accept4(listener.fileno(), at(6), at(7), 0),
        lambda: libc.sendto(fresh(), b'x', 1, 0, at(8), 16),
        lambda: libc.connect(fresh(), at(9), 28),
        lambda: libc.sendmsg(fresh(), at(10), 0),
        lambda: libc.getsockopt(conn.fileno(), 6, 11, at(11), at(12)),
        lambda: libc.connect(fresh(), at(13), 16),
    ]
    for c in calls:
        threading.Thread(target=begin, args=(c,), daemon=True).start()
    c = socket.socket(); c.setblocking(False)
    c.connect_ex(listener.getsockname())
    os.write(ready[1], b'x')
    time.sleep(600)

for _ in range(processes):
    if os.fork() == 0:
        try: process()
        finally: os._exit(1)
got = 0
while got < processes: got += len(os.read(ready[0], 100))
print('stuck', flush=True)
time.sleep(600)
