# SPDX-License-Identifier: Apache-2.0
"""Scenarios of sockapi.py that try whole ranges: every number of a socket option, every
ioctl() of a TCP socket, flags with any buffer. The calls are made by number, with pointers
that Python would not pass."""
import array, ctypes, errno, fcntl, os, select, socket, struct, time

libc = ctypes.CDLL(None, use_errno=True)
S, T, I4, I6 = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
LEVELS = {S: "SOL_SOCKET", T: "IPPROTO_TCP", I4: "IPPROTO_IP", I6: "IPPROTO_IPV6"}
BAD = 8  # an address that is never mapped
scenarios = {}


def scenario(f):
    scenarios[f.__name__] = f
    return f


TRANSFERS = {"recv", "recvfrom", "recvmsg", "readv", "send", "sendto", "sendmsg", "writev"}


def call(name, *args):
    """Makes a call of libc. Returns its result, or the name of the error."""
    args = [ctypes.c_void_p(a) if isinstance(a, int) and a > 1 << 31 else a for a in args]
    ctypes.set_errno(0)
    f = getattr(libc, name)
    f.restype = ctypes.c_ssize_t if name in TRANSFERS else ctypes.c_int
    r = f(*args)
    return errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno()) if r == -1 else r


def getopt(s, level, name, size):
    b, n = ctypes.create_string_buffer(b"\xee" * 64, 64), ctypes.c_uint(size)
    r = call("getsockopt", s.fileno(), level, name, b, ctypes.byref(n))
    return r if r else (n.value, b.raw[:max(min(n.value, size, 64), 0)].hex() + ("" if b.raw[size:] == b"\xee" * (64 - size) else " beyond"))


def setopt(s, level, name, value, size=None):
    return call("setsockopt", s.fileno(), level, name, value, len(value) if size is None else size)


# Options whose value is another one in each connection: only the error and the length are
# compared. SO_RCVBUF and SO_SNDBUF are those of the pair.
VARIES = {
    (S, socket.SO_RCVBUF), (S, socket.SO_SNDBUF), (S, 28), (S, 49), (S, 55), (S, 56), (S, 57),
    (T, 2), (T, 10), (T, 11), (T, 12), (T, 24), (T, 26), (T, 28), (T, 42), (I4, 52),
}
# Options that take an argument from the buffer, or belong to packet filters.
OTHERS = {(I4, 41), (I6, 32)} | {(I4, n) for n in range(64, 101)} | {(I6, 64), (I6, 65)}


def shown(level, name, v):
    return v[0] if isinstance(v, tuple) and (level, name) in VARIES else v


@scenario
def options_read(x):
    """Every number of each level, with buffers of several sizes."""
    for level, text in LEVELS.items():
        for name in range(0, 101):
            if (level, name) not in OTHERS:
                x.log(f"{text} {name}", [shown(level, name, getopt(x.s, level, name, size)) for size in (64, 4, 1, 0)])
        if level == I6 and x.s.family != socket.AF_INET6:
            continue
        x.log(f"{text} no length", call("getsockopt", x.s.fileno(), level, 1, ctypes.create_string_buffer(8), None))
        x.log(f"{text} no buffer", call("getsockopt", x.s.fileno(), level, 2, None, ctypes.byref(ctypes.c_uint(4))))
        if level != I6:
            x.log(f"{text} negative", getopt(x.s, level, 2, -1))
    for level in (2, 41 + 1, 255, 58, 132, 256, 263, 270, 282, 284, -1):
        x.log(f"level {level}", (getopt(x.s, level, 1, 4), setopt(x.s, level, 1, struct.pack("i", 1))))


# Options that change what the rest of the scenario or the host does.
# SO_ATTACH_FILTER, SO_BINDTOIFINDEX, TCP_CORK, TCP_REPAIR, TCP_MD5SIG and others of the connection below; those that docs/sockets.md lists.
NOT_SET = OTHERS | {(S, 26), (S, 36), (S, 47), (S, 60), (S, 62)} | {(T, n) for n in (3, 14, 19, 20, 21, 22, 30, 31, 36)}


@scenario
def options_set(x):
    """Sets every number of each level, and reads it then."""
    for level, text in LEVELS.items():
        for name in range(0, 101):
            if (level, name) in NOT_SET:
                continue
            before = getopt(x.s, level, name, 16)
            got = []
            for value in (struct.pack("i", 1), struct.pack("i", 0), struct.pack("i", -1), struct.pack("ii", 2, 0), struct.pack("qq", 0, 1000), b"\1", b""):
                if (level, name) == (S, socket.SO_LINGER) and value == struct.pack("ii", 2, 0):
                    continue  # it would reset the connection
                if (level, name) == (S, socket.SO_RCVLOWAT) and value == struct.pack("i", -1):
                    continue  # TCP reduces it to a part of its buffer
                if level in (I4, I6) and name in (16, 17, 34, 35) and value == b"":
                    continue  # the pointer of an empty value is lost
                got.append((setopt(x.s, level, name, value), shown(level, name, getopt(x.s, level, name, 16))))
            if level not in (I4, I6) or name not in (16, 17, 34, 35):
                got.append(setopt(x.s, level, name, ctypes.c_void_p(BAD), 4))
            got.append(setopt(x.s, level, name, struct.pack("i", 1), -1))
            x.log(f"{text} {name}", got)
            if isinstance(before, tuple) and level == S and name in (socket.SO_RCVLOWAT, socket.SO_RCVTIMEO, socket.SO_SNDTIMEO, socket.SO_LINGER, socket.SO_OOBINLINE, 42, 66, 67):
                setopt(x.s, level, name, bytes.fromhex(before[1]))
    x.sync()
    x.s.sendall(b"x")  # it still works
    x.log("byte", x.s.recv(1))


# ioctl() requests of a TCP socket, by name. The value is what the argument begins with.
LO, NO, ETH = b"lo", b"nosuch0", None


def ifreq(name, rest=b""):
    return name.ljust(16, b"\0") + rest.ljust(24, b"\0")


def inet(addr):
    return struct.pack("H2s4s8x", socket.AF_INET, b"", socket.inet_aton(addr))


READS = {
    "SIOCGIFNAME": 0x8910, "SIOCGIFFLAGS": 0x8913, "SIOCGIFADDR": 0x8915, "SIOCGIFDSTADDR": 0x8917, "SIOCGIFBRDADDR": 0x8919,
    "SIOCGIFNETMASK": 0x891b, "SIOCGIFMETRIC": 0x891d, "SIOCGIFMEM": 0x891f, "SIOCGIFMTU": 0x8921, "SIOCGIFENCAP": 0x8925,
    "SIOCGIFHWADDR": 0x8927, "SIOCGIFSLAVE": 0x8929, "SIOCGIFINDEX": 0x8933, "SIOCGIFPFLAGS": 0x8935, "SIOCGIFCOUNT": 0x8938,
    "SIOCGIFBR": 0x8940, "SIOCGIFTXQLEN": 0x8942, "SIOCETHTOOL": 0x8946, "SIOCGMIIPHY": 0x8947, "SIOCGMIIREG": 0x8948, "SIOCWANDEV": 0x894a,
    "SIOCGIFVLAN": 0x8982, "SIOCGIFMAP": 0x8970, "SIOCBONDINFOQUERY": 0x8994, "SIOCBRADDIF": 0x89a2,
    "SIOCGHWTSTAMP": 0x89b1, "SIOCDEVPRIVATE": 0x89f0, "SIOCPROTOPRIVATE": 0x89e0, "SIOCPROTOPRIVATE 1": 0x89e1, "SIOCPROTOPRIVATE 2": 0x89e2,
    "SIOCGIWNAME": 0x8b01, "SIOCRTMSG": 0x890d, "SIOCGARP": 0x8954, "SIOCDARP": 0x8953, "SIOCGRARP": 0x8961,
    "FIOGETOWN": 0x8903, "SIOCGPGRP": 0x8904, "SIOCATMARK": 0x8905, "SIOCGSTAMP_OLD": 0x8906, "SIOCGSTAMPNS_OLD": 0x8907,
    "SIOCGSTAMP_NEW": 0x80108906, "SIOCGSTAMPNS_NEW": 0x80108907, "SIOCOUTQNSD": 0x894b, "SIOCINQ": 0x541b, "SIOCOUTQ": 0x5411,
    "TCGETS": 0x5401, "TIOCGWINSZ": 0x5413, "FIOQSIZE": 0x5460, "none": 0, "8900": 0x8900, "89ff": 0x89ff, "890f": 0x890f, "8936": 0x8936,
    "SIOCSIFLINK": 0x8911, "SIOCGIFCONF": 0x8912,
}


def devices():
    """The devices of the host, without those of a stack."""
    return [(i, n) for i, n in socket.if_nameindex() if not n.startswith("smcr")]


DEVICE = (0x8910, 0x8927, 0x8933, 0x8912)  # what they return belongs to the host


@scenario
def ioctl_reads(x):
    """All requests that only read, for interfaces that exist and that do not."""
    eth = [n for _, n in devices() if n != "lo"][0].encode()
    for name, op in READS.items():
        for which, dev in (("lo", LO), ("eth", eth), ("no", NO)):
            b = ctypes.create_string_buffer(ifreq(dev, inet("127.0.0.1")) + b"\xee" * 88, 128)
            if op in (0x8954, 0x8953, 0x8961):  # struct arpreq
                b = ctypes.create_string_buffer(inet("192.0.2.77") + bytes(36) + dev.ljust(16, b"\0") + b"\xee" * 60, 128)
            elif op in (0x8946, 0x89f0, 0x8982, 0x89b1, 0x8912, 0x8940) and which != "no":
                continue  # pointers
            elif op == 0x8912:
                b = ctypes.create_string_buffer(bytes(16) + b"\xee" * 112, 128)
            elif op == 0x8910:  # by an index that no device has
                b = ctypes.create_string_buffer(ifreq(dev, struct.pack("i", 1 << 30)) + b"\xee" * 88, 128)
            r = call("ioctl", x.s.fileno(), ctypes.c_ulong(op), b)
            x.log(f"{name} {which}", (r, "" if which == "eth" or op in DEVICE else b.raw[:72].hex()))
        for text, p in (("NULL", None), ("bad", ctypes.c_void_p(BAD))):
            if op not in (0x8940, 0x8912):
                x.log(f"{name} {text}", call("ioctl", x.s.fileno(), ctypes.c_ulong(op), p))
    own = os.stat("/proc/self/ns/net").st_ino

    def netns():
        fd = fcntl.ioctl(x.s, 0x894c)
        i = os.fstat(fd).st_ino
        os.close(fd)
        return i == own
    x.ask("SIOCGSKNS", netns)
    b = array.array("B", bytes(4000))
    n = struct.unpack("iP", fcntl.ioctl(x.s, 0x8912, struct.pack("iP", 4000, b.buffer_info()[0])))[0]
    mine = {n.encode() for _, n in socket.if_nameindex()}
    x.log("SIOCGIFCONF", {bytes(b[i:i + 16]).rstrip(b"\0") for i in range(0, n, 40)} <= mine)
    for i, name in devices():
        x.log("SIOCGIFINDEX " + ("lo" if name == "lo" else "eth"), struct.unpack("i", fcntl.ioctl(x.s, 0x8933, ifreq(name.encode()))[16:20])[0] == i)
        x.log("SIOCGIFNAME " + ("lo" if name == "lo" else "eth"), fcntl.ioctl(x.s, 0x8910, struct.pack("16si20x", b"", i))[:16].rstrip(b"\0") == name.encode())
    x.log("SIOCGIFADDR", fcntl.ioctl(x.s, 0x8915, ifreq(eth))[20:24] == socket.inet_aton(x.s.getsockname()[0]) if x.s.family == socket.AF_INET else None)


def rtentry(dst, dev, mask="255.255.255.255", flags=5):
    """struct rtentry for a host route by a device."""
    name = ctypes.create_string_buffer(dev)
    rt = struct.pack("8x16s16s16sHhL8xP16s", inet(dst), inet("0.0.0.0"), inet(mask), flags, 0, 0, 0, b"")
    rt = bytearray(120)
    rt[8:24], rt[40:56] = inet(dst), inet(mask)
    struct.pack_into("H", rt, 56, flags)
    struct.pack_into("P", rt, 88, ctypes.addressof(name))
    return bytes(rt), name


@scenario
def ioctl_writes(x):
    """Requests that change an interface, a route or the ARP table, and what is there then.
    A request that the program may not make fails."""
    dev = b"lo"
    i4 = x.s.family == socket.AF_INET

    def do(text, op, arg):
        r = call("ioctl", x.s.fileno(), ctypes.c_ulong(op), ctypes.create_string_buffer(arg, len(arg)))
        x.log(text, r)
        return r
    tag = b"lo:" + (b"c" if x.client else b"s")
    do("SIOCSIFADDR", 0x8916, ifreq(tag, inet("127.9.9.9")))
    do("SIOCGIFADDR then", 0x8915, ifreq(tag))
    do("SIOCSIFNETMASK", 0x891c, ifreq(tag, inet("255.255.0.0")))
    do("SIOCSIFBRDADDR", 0x891a, ifreq(tag, inet("127.9.255.255")))
    do("SIOCSIFDSTADDR", 0x8918, ifreq(tag, inet("127.9.0.2")))
    do("SIOCSIFPFLAGS", 0x8934, ifreq(tag, struct.pack("h", 0)))
    r, keep = rtentry("192.0.2.200", dev)
    do("SIOCADDRT", 0x890b, r)
    x.log("route", "C80200C0" in open("/proc/net/route").read())
    do("SIOCDELRT", 0x890c, r)
    x.log("route then", "C80200C0" in open("/proc/net/route").read())
    do("SIOCDELRT again", 0x890c, r)
    r, keep = rtentry("192.0.2.201", b"nosuch0")
    do("SIOCADDRT no device", 0x890b, r)
    r, keep = rtentry("192.0.2.201", b"a very long name of a device")
    do("SIOCADDRT long name", 0x890b, r)
    do("SIOCADDRT bad name", 0x890b, r[:88] + struct.pack("P", BAD) + r[96:])
    do("SIOCADDRT no name", 0x890b, r[:88] + struct.pack("P", 0) + r[96:])
    eth = [n for _, n in devices() if n != "lo"][0].encode()
    arp = inet("10.255.255.9" if x.s.family != socket.AF_INET else x.s.getsockname()[0].rsplit(".", 1)[0] + ".99") + struct.pack("H14s", 1, b"\2\0\0\0\0\x99") + struct.pack("i", 4 | 2) + bytes(16) + eth.ljust(16, b"\0")
    do("SIOCSARP", 0x8955, arp)
    b = ctypes.create_string_buffer(arp[:16] + bytes(36) + eth.ljust(16, b"\0"), 68)
    x.log("SIOCGARP", (call("ioctl", x.s.fileno(), ctypes.c_ulong(0x8954), b), b.raw[18:24].hex(), b.raw[32:36].hex()))
    do("SIOCDARP", 0x8953, arp)
    do("SIOCGARP then", 0x8954, arp)
    if not i4:
        tag = NO  # the flags would be those of the device
    do("SIOCSIFFLAGS", 0x8914, ifreq(tag, struct.pack("h", 0)))  # removes the address
    do("SIOCGIFADDR at last", 0x8915, ifreq(tag))
    do("SIOCSIFFLAGS again", 0x8914, ifreq(tag, struct.pack("h", 0)))
    do("SIOCSIFMTU", 0x8922, ifreq(NO, struct.pack("i", 1500)))
    do("SIOCSIFNAME", 0x8923, ifreq(NO, b"other"))
    do("SIOCDIFADDR", 0x8936, bytes(16) + struct.pack("Ii", 128, 1))
    if not i4:
        one = bytes(15) + (b"\x11" if x.client else b"\x12")
        one = b"\xfd\x99" + one[2:]
        do("SIOCSIFADDR v6", 0x8916, one + struct.pack("Ii", 128, 1))
        do("SIOCDIFADDR v6", 0x8936, one + struct.pack("Ii", 128, 1))
        do("SIOCDIFADDR v6 again", 0x8936, one + struct.pack("Ii", 128, 1))
        rt6 = one + bytes(32) + struct.pack("IHHIQIi", 0, 128, 0, 1024, 0, 1, 1)
        rt6 = bytearray(80)
        rt6[:16] = one
        struct.pack_into("IHHIxxxxQIi", rt6, 48, 0, 128, 0, 1024, 0, 1, 1)
        do("SIOCADDRT v6", 0x890b, bytes(rt6))
        do("SIOCDELRT v6", 0x890c, bytes(rt6))
        do("SIOCDELRT v6 again", 0x890c, bytes(rt6))
    for text, f in (("FIOASYNC", 0x5452), ("FIONBIO", 0x5421)):
        x.log(text, call("ioctl", x.s.fileno(), ctypes.c_ulong(f), struct.pack("i", 1)))
        x.log(text + " then", fcntl.fcntl(x.s, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_ASYNC))
        call("ioctl", x.s.fileno(), ctypes.c_ulong(f), struct.pack("i", 0))
    for text, f, g in (("FIOSETOWN", 0x8901, 0x8903), ("SIOCSPGRP", 0x8902, 0x8904)):
        x.log(text, call("ioctl", x.s.fileno(), ctypes.c_ulong(f), struct.pack("i", os.getpid())))
        x.log(text + " then", x.ioctl(g) == os.getpid())
        call("ioctl", x.s.fileno(), ctypes.c_ulong(f), struct.pack("i", 0))


@scenario
def queues(x):
    """What SIOCOUTQ, SIOCOUTQNSD and SIOCINQ count, while the reader waits."""
    n = 4_000_000
    if x.client:
        x.s.setblocking(False)
        sent = 0
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                sent += x.s.send(bytes(n))
            except BlockingIOError:
                time.sleep(0.05)
        out, unsent = x.ioctl(0x5411), x.ioctl(0x894b)
        x.log("out", 0 < out <= sent)
        x.log("unsent", 0 < unsent <= out)
        x.ctl.sendall(struct.pack("Q", sent))
        x.log("empty", x.wait(lambda: x.ioctl(0x5411) == 0))
        x.log("empty unsent", x.ioctl(0x894b))
        x.sync()
        x.s.setblocking(True)
        x.s.sendall(b"one")
        x.log("unread", x.wait(lambda: x.ioctl(0x5411) == 0))
        x.sync()
        return
    sent = struct.unpack("Q", x.ctl.recv(8, socket.MSG_WAITALL))[0]
    x.log("in", 0 < x.ioctl(0x541b) <= sent)
    while sent:
        sent -= len(x.s.recv(min(sent, 1 << 20)))
    x.sync()
    x.log("arrived", x.wait(lambda: x.ioctl(0x541b) == 3))
    x.sync()


RECV = {"OOB": 1, "PEEK": 2, "CTRUNC": 8, "TRUNC": 0x20, "EOR": 0x80, "WAITALL": 0x100, "ERRQUEUE": 0x2000, "MORE": 0x8000,
        "WAITFORONE": 0x10000, "ZEROCOPY": 0x4000000, "CMSG_CLOEXEC": 0x40000000, "DONTROUTE": 4, "PROXY": 0x10}
DONTWAIT = 0x40


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


def fill(x, n=10):
    """Has the other side send n bytes, and waits until they are here."""
    x.ctl.sendall(struct.pack("b", n))
    assert x.wait(lambda: x.ioctl(0x541b) == n), "the data do not come"


def feed(x):
    while (n := x.ctl.recv(1)[0]) != 0:
        x.s.sendall(b"0123456789abcdef"[:n])


def serve(f):
    """The server feeds, the client asks; then the other way round."""
    def both(x):
        for client in (True, False):
            if x.client == client:
                f(x)
                x.ctl.sendall(b"\0")
            else:
                feed(x)
            x.sync()
    scenarios[f.__name__] = both
    return both


@serve
def recv_flags(x):
    """recv() with each pair of flags, with buffers of any kind, and what is left then."""
    fd = x.s.fileno()
    combos = [()] + [(a,) for a in RECV] + [(a, b) for i, a in enumerate(RECV) for b in list(RECV)[i + 1:]]
    for combo in combos:
        flags = sum(RECV[f] for f in combo) | DONTWAIT
        for text, size, null in (("4", 4, False), ("NULL", 4, True), ("0", 0, False)):
            if "WAITALL" in combo and text == "NULL" and "TRUNC" not in combo:
                continue
            fill(x)
            b = ctypes.create_string_buffer(16)
            r = call("recv", fd, None if null else b, size, flags)
            x.log(f"{'|'.join(combo)} {text}", (r, b.raw.rstrip(b"\0"), x.ioctl(0x541b)))
            drain(x)
    x.log("empty TRUNC", call("recv", fd, None, 10, RECV["TRUNC"] | DONTWAIT))
    x.log("empty ERRQUEUE", call("recv", fd, None, 10, RECV["ERRQUEUE"]))


def drain(x):
    while x.ioctl(0x541b):
        x.s.recv(100)


@serve
def discard(x):
    """MSG_TRUNC throws away."""
    fd = x.s.fileno()
    for text, size, flags in (("all", 10, 0), ("more", 100, 0), ("some", 3, 0), ("none", 0, 0), ("huge", (1 << 31) - 1, 0), ("wait", 10, 0x100), ("peek", 100, 2)):
        fill(x)
        x.log(text, (call("recv", fd, None, size, RECV["TRUNC"] | flags), x.ioctl(0x541b)))
        drain(x)
    fill(x)
    m = Msghdr()
    x.log("recvmsg without memory", (call("recvmsg", fd, ctypes.byref(m), RECV["TRUNC"]), x.ioctl(0x541b), m.flags))
    v = (Iovec * 2)(Iovec(None, 3), Iovec(None, 4))
    m = Msghdr(None, 0, ctypes.addressof(v), 2, None, 0, 77)
    x.log("recvmsg", (call("recvmsg", fd, ctypes.byref(m), RECV["TRUNC"]), x.ioctl(0x541b), m.flags, m.controllen))
    drain(x)
    fill(x)
    name = ctypes.create_string_buffer(b"\xee" * 64)
    m = Msghdr(ctypes.addressof(name), 64, ctypes.addressof(v), 2, None, 0, 0)
    x.log("recvmsg with a name", (call("recvmsg", fd, ctypes.byref(m), RECV["TRUNC"] | DONTWAIT), m.namelen, m.flags))
    drain(x)
    n = ctypes.c_uint(64)
    fill(x)
    x.log("recvfrom with a name", (call("recvfrom", fd, None, 7, RECV["TRUNC"], name, ctypes.byref(n)), n.value))
    x.log("left", x.s.recv(100))
    # It waits for data, and for all of it with MSG_WAITALL.
    x.s.setsockopt(S, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
    x.log("nothing", call("recv", fd, None, 10, RECV["TRUNC"]))
    fill(x, 6)
    x.log("too little", (call("recv", fd, None, 10, RECV["TRUNC"] | 0x100), x.ioctl(0x541b)))
    x.s.setsockopt(S, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
    x.ctl.sendall(struct.pack("b", 10))
    x.log("waits", call("recv", fd, None, 10, RECV["TRUNC"] | 0x100))
    x.s.setblocking(False)
    x.log("non-blocking", call("recv", fd, None, 10, RECV["TRUNC"]))
    x.s.setblocking(True)


@serve
def recv_memory(x):
    """Bad pointers and vectors of any length: nothing is lost."""
    fd = x.s.fileno()
    for text, args in (("NULL", (None, 4)), ("bad", (ctypes.c_void_p(BAD), 4)), ("huge", (ctypes.c_void_p(BAD), 1 << 62)), ("none", (None, 0))):
        fill(x)
        x.log("recv " + text, (call("recv", fd, args[0], ctypes.c_size_t(args[1]), DONTWAIT), x.ioctl(0x541b)))
        drain(x)
    b = ctypes.create_string_buffer(16)
    for count in (0, 1, 1024, 1025):
        v = (Iovec * count)(*[Iovec(ctypes.addressof(b), 1 if i < 8 else 0) for i in range(count)])
        for name in ("readv", "recvmsg"):
            fill(x)
            if name == "readv":
                r = call("readv", fd, v, count)
            else:
                m = Msghdr(None, 0, ctypes.addressof(v), count, None, 0, 0)
                r = call("recvmsg", fd, ctypes.byref(m), DONTWAIT)
            x.log(f"{name} {count}", (r, x.ioctl(0x541b)))
            drain(x)
    v = (Iovec * 2)(Iovec(ctypes.addressof(b), 3), Iovec(BAD, 4))
    for text, m in (("no header", None), ("bad vector", Msghdr(None, 0, BAD, 1, None, 0, 0)), ("half a vector", Msghdr(None, 0, ctypes.addressof(v), 2, None, 0, 0)),
                    ("bad name", Msghdr(BAD, 16, ctypes.addressof(v), 1, None, 0, 0)), ("long name", Msghdr(ctypes.addressof(b), 1 << 30, ctypes.addressof(v), 1, None, 0, 0)),
                    ("bad control", Msghdr(None, 0, ctypes.addressof(v), 1, BAD, 64, 0))):
        fill(x)
        x.log("recvmsg " + text, (call("recvmsg", fd, ctypes.byref(m) if m else None, DONTWAIT), x.ioctl(0x541b), m and (m.namelen, m.controllen, m.flags)))
        drain(x)
    fill(x)
    n = ctypes.c_uint(64)
    x.log("recvfrom", (call("recvfrom", fd, b, 4, DONTWAIT, b, ctypes.byref(n)), n.value))
    drain(x)


SEND = {"CTRUNC": 8, "DONTROUTE": 4, "TRUNC": 0x20, "EOR": 0x80, "WAITALL": 0x100, "SYN": 0x400, "CONFIRM": 0x800, "ERRQUEUE": 0x2000, "MORE": 0x8000,
        "BATCH": 0x40000, "ZEROCOPY": 0x4000000, "SPLICE_PAGES": 0x8000000, "PEEK": 2, "PROXY": 0x10, "PROBE": 0x20000000 >> 25}


@scenario
def send_flags(x):
    """send() with each pair of flags. The bytes arrive."""
    fd = x.s.fileno()
    combos = [()] + [(a,) for a in SEND] + [(a, b) for i, a in enumerate(SEND) for b in list(SEND)[i + 1:]]
    total = 0
    for combo in combos:
        for text, p, size in (("", b"xyz", 3), (" 0", b"", 0), (" bad", ctypes.c_void_p(BAD), 3)):
            r = call("send", fd, p, size, sum(SEND[f] for f in combo) | DONTWAIT | 0x4000)
            x.log("|".join(combo) + text, r)
            total += r if isinstance(r, int) else 0
    for count in (0, 1, 1024, 1025):
        b = ctypes.create_string_buffer(b"v" * 16)
        v = (Iovec * count)(*[Iovec(ctypes.addressof(b), 1 if i < 8 else 0) for i in range(count)])
        m = Msghdr(None, 0, ctypes.addressof(v), count, None, 0, 0)
        for name, r in (("writev", call("writev", fd, v, count)), ("sendmsg", call("sendmsg", fd, ctypes.byref(m), 0))):
            x.log(f"{name} {count}", r)
            total += r if isinstance(r, int) else 0
    v = (Iovec * 2)(Iovec(ctypes.addressof(b), 3), Iovec(BAD, 4))
    for text, m in (("no header", None), ("bad vector", Msghdr(None, 0, BAD, 1, None, 0, 0)), ("half a vector", Msghdr(None, 0, ctypes.addressof(v), 2, None, 0, 0)),
                    ("bad control", Msghdr(None, 0, ctypes.addressof(v), 1, BAD, 64, 0)), ("short control", Msghdr(None, 0, ctypes.addressof(v), 1, ctypes.addressof(b), 4, 0))):
        r = call("sendmsg", fd, ctypes.byref(m) if m else None, 0)
        x.log("sendmsg " + text, r)
        total += r if isinstance(r, int) else 0
    x.s.setsockopt(T, socket.TCP_NODELAY, 1)
    x.ctl.sendall(struct.pack("Q", total))
    want = struct.unpack("Q", x.ctl.recv(8, socket.MSG_WAITALL))[0]
    x.log("arrives", want == sum(len(x.s.recv(want, socket.MSG_WAITALL)) for _ in range(1)))
    x.sync()
    x.log("nothing else", x.ioctl(0x541b))


@scenario
def control_sent(x):
    """Control messages of sendmsg()."""
    s, total, pipe = x.s, 0, os.pipe()
    for level in (S, T, I4, I6, 1000):
        for kind in (0, 1, 2, 3, 4, 7, 8, 24, 29, 35, 36, 37, 50, 52, 61, 67):
            for data in (struct.pack("i", pipe[0]), struct.pack("iii", *pipe, pipe[0]), b"", struct.pack("ii", *pipe)):
                if (kind, len(data)) == (2, 12):
                    data = struct.pack("iII", os.getpid(), os.getuid(), os.getgid())
                try:
                    r = s.sendmsg([b"ab"], [(level, kind, data)])
                    total += r
                except OSError as e:
                    r = errno.errorcode[e.errno]
                x.log(f"{LEVELS.get(level, level)} {kind} {len(data)}", r)
    x.ctl.sendall(struct.pack("Q", total))
    want = struct.unpack("Q", x.ctl.recv(8, socket.MSG_WAITALL))[0]
    x.log("bytes", len(s.recv(want, socket.MSG_WAITALL)) == want)


@serve
def control_received(x):
    """Control messages of recvmsg(), with all options that ask for some."""
    s = x.s
    for text, level, name in (("nothing", S, 2), ("SO_PASSCRED", S, 16), ("SO_PASSSEC", S, 34), ("SO_PASSPIDFD", S, 76), ("SO_TIMESTAMP", S, 29), ("SO_TIMESTAMPNS", S, 35),
                              ("SO_TIMESTAMPING", S, 37), ("SO_RXQ_OVFL", S, 40), ("SO_RCVMARK", S, 75), ("SO_INQ", S, 84), ("TCP_INQ", T, 36), ("IP_PKTINFO", I4, 8), ("IP_RECVTOS", I4, 13),
                              ("IPV6_RECVPKTINFO", I6, 49)):
        r = setopt(s, level, name, struct.pack("i", 0x18 if name == 37 else 1))
        fill(x)
        got = s.recvmsg(100, 256)
        # TCP adds times only if something else on the host has already made the kernel take them.
        x.log(text, (r, got[0], [(l, k, len(d)) for l, k, d in got[1] if (l, k) not in ((S, 29), (S, 35), (S, 37))], got[2]))
        setopt(s, level, name, struct.pack("i", 0))


@scenario
def after_shut_read(x):
    """Data that comes after shutdown(SHUT_RD), or is here already."""
    s = x.s
    if x.client:
        s.sendall(b"before")
        x.sync()
        x.sync()
        x.ask("send", lambda: s.send(b"after"))
        time.sleep(0.2)
        x.ask("send again", lambda: s.send(b"again"))
        x.ask("SO_ERROR", lambda: s.getsockopt(S, socket.SO_ERROR))
        x.log("poll", x.events(select.POLLIN | select.POLLOUT | select.POLLRDHUP))
        x.sync()
        x.ask("recv", lambda: s.recv(10))
        x.sync()
        s.setblocking(False)
        sent, end = 0, time.monotonic() + 1
        r = ""
        while time.monotonic() < end and not r:
            try:
                sent += s.send(bytes(100000))
            except BlockingIOError:
                time.sleep(0.05)
            except OSError as e:
                r = errno.errorcode[e.errno]
        x.log("many", r)
        x.sync()
        return
    x.sync()
    x.wait(lambda: x.ioctl(0x541b) == 6)
    x.ask("shutdown", lambda: s.shutdown(socket.SHUT_RD))
    x.log("poll", x.events(select.POLLIN | select.POLLOUT | select.POLLRDHUP))
    x.ask("before", lambda: s.recv(100))
    x.ask("then", lambda: s.recv(100))
    x.sync()
    time.sleep(0.1)
    x.sync()
    x.ask("after", lambda: s.recv(100))
    x.ask("at last", lambda: s.recv(100))
    x.ask("send", lambda: s.send(b"back"))
    x.sync()
    x.sync()


def disconnect(x):
    """connect() to AF_UNSPEC ends the connection, and the socket can be used again."""
    s = x.s
    if x.client:
        peer = s.getpeername()
        s.setsockopt(T, socket.TCP_NODELAY, 1)
        s.setsockopt(S, socket.SO_KEEPALIVE, 1)
        x.log("connect", call("connect", s.fileno(), struct.pack("H14x", 0), 16))
        x.ask("getpeername", lambda: s.getpeername())
        x.ask("send", lambda: s.send(b"x"))
        x.ask("recv", lambda: s.recv(1))
        x.log("SO_ERROR", s.getsockopt(S, socket.SO_ERROR))
        x.log("TCP_INFO", s.getsockopt(T, socket.TCP_INFO, 104)[0])
        x.log("options", (s.getsockopt(T, socket.TCP_NODELAY), s.getsockopt(S, socket.SO_KEEPALIVE)))
        x.log("again", call("connect", s.fileno(), struct.pack("H14x", 0), 16))
        x.sync()
        x.ask("connect then", lambda: s.connect(x.ctl.getpeername()))
        x.ask("send then", lambda: s.send(b"x"))
        x.ask("recv then", lambda: s.recv(1))
    else:
        x.ask("recv", lambda: s.recv(1))
        x.sync()
        x.ctl.settimeout(20)
        t, _ = x.listener.accept()
        t.recv(1)
        t.send(b"y")
        t.close()
    x.sync()
    for text, a, n in (("AF_UNIX", struct.pack("H14x", 1), 16), ("short", struct.pack("H", 0), 2), ("shorter", b"\0", 1), ("AF_INET", struct.pack("H14x", 2), 16),
                       ("NULL", None, 16), ("long", None, 1000)):
        if not x.client:
            x.log("accepted " + text, call("connect", s.fileno(), a, n))


@scenario
def peer_options(x):
    """What tells a program who is on the other side."""
    for name, opt in (("SO_PEERCRED", 17), ("SO_PEERNAME", 28), ("SO_PEERSEC", 31), ("SO_PEERGROUPS", 59), ("SO_PEERPIDFD", 77)):
        for size in (0, 4, 12, 16, 28, 64):
            v = getopt(x.s, S, opt, size)
            if opt == 28 and isinstance(v, tuple):
                port = struct.pack("!H", x.s.getpeername()[1])
                v = (v[0], v[1].replace(port.hex(), "PORT") if size > 2 else v[1])
            x.log(f"{name} {size}", v)


@scenario
def saved_syn(x):  # the listener has TCP_SAVE_SYN
    x.log("TCP_SAVE_SYN", getopt(x.s, T, 27, 4))
    for i in range(2):
        x.ask(f"TCP_SAVED_SYN {i}", lambda: len(x.s.getsockopt(T, 28, 256)) > 0)


@scenario
def refused(x):
    """Options that would promise what the pair cannot do."""
    for text, level, name in (("SO_ZEROCOPY", S, 60), ("TCP_INQ", T, 36)):
        x.log(text, (setopt(x.s, level, name, struct.pack("i", 1)), getopt(x.s, level, name, 4)[1]))
