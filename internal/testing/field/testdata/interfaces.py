# SPDX-License-Identifier: Apache-2.0
"""What the ioctls of interfaces say of a connection is about the program's own network
namespace, as those of a UDP socket are, and no descriptor of another namespace comes back."""
from side import *
import array, fcntl, struct

OPS = {"SIOCGIFADDR": 0x8915, "SIOCGIFNETMASK": 0x891B, "SIOCGIFBRDADDR": 0x8919, "SIOCGIFFLAGS": 0x8913,
       "SIOCGIFMTU": 0x8921, "SIOCGIFINDEX": 0x8933, "SIOCGIFHWADDR": 0x8927, "SIOCGIFTXQLEN": 0x8942,
       "SIOCGIFMETRIC": 0x891D}


def result(s, op, b):
    try:
        return fcntl.ioctl(s, op, b)
    except OSError as e:
        return name(e)


def names(s):
    b = array.array("B", [0] * 4096)
    try:
        n = struct.unpack("iL", fcntl.ioctl(s, 0x8912, struct.pack("iL", 4096, b.buffer_info()[0])))[0]
    except OSError as e:
        return name(e)
    return sorted(bytes(b[:n])[i:i + 24] for i in range(0, n, 40))


def namespace(s):
    """Whose namespace SIOCGSKNS returns."""
    fd = fcntl.ioctl(s, 0x894C)
    try:
        return "own" if os.readlink(f"/proc/self/fd/{fd}") == os.readlink("/proc/self/ns/net") else "FOREIGN"
    finally:
        os.close(fd)


def look(c):
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for dev in ("lo", "eth0", "nothing"):
        for what, op in OPS.items():
            b = struct.pack("40s", dev.encode())
            got, want = result(c, op, b), result(own, op, b)
            log(f"{what} {dev}", ("own" if isinstance(got, bytes) else got) if got == want else f"FOREIGN or not known: {got}")
    log("SIOCGIFCONF", "own" if names(c) == names(own) else "FOREIGN or not known")
    ask("SIOCGSKNS", lambda: namespace(c))
    arp = struct.pack("HH4s8x16xi16x16s", socket.AF_INET, 0, socket.inet_aton("10.77.0.1" if ":" in addr else addr), 0, b"eth0")[:68]
    got, want = result(c, 0x8954, arp.ljust(68, b"\0")), result(own, 0x8954, arp.ljust(68, b"\0"))
    log("SIOCGARP", "as of a UDP socket" if type(got) is type(want) else got)
    ask("SIOCOUTQNSD", lambda: struct.unpack("i", fcntl.ioctl(c, 0x894B, b"\0" * 4))[0])
    ask("SIOCINQ", lambda: struct.unpack("i", fcntl.ioctl(c, 0x541B, b"\0" * 4))[0])


def server():
    c = accept()
    recv(c, 1)
    look(c)
    c.sendall(b"x")
    recv(c, 1)


def client():
    c = connect()
    c.sendall(b"x")
    recv(c, 1)
    look(c)


main(server=server, client=client)
