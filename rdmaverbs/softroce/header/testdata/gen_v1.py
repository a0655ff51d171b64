#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build RoCE version 1 frames, one of each RC opcode SMC-R needs.

Written from the InfiniBand Architecture Specification (7.8.1 for the ICRC,
8.3, 9.2, 9.3) and annex A16, independent of the Go code that it checks.
"""
import struct
import zlib

SRC = bytes.fromhex("0200000000a1")
DST = bytes.fromhex("0200000000b2")
SGID = bytes.fromhex("fe80000000000000000000fffe0000a1")
DGID = bytes.fromhex("fe80000000000000000000fffe0000b2")

# name, opcode, has RETH, AETH syndrome or None, has immediate, payload bytes
FRAMES = [
    ("send-first", 0x00, False, None, False, 256),
    ("send-middle", 0x01, False, None, False, 256),
    ("send-last", 0x02, False, None, False, 7),
    ("send-last-imm", 0x03, False, None, True, 8),
    ("send-only", 0x04, False, None, False, 44),
    ("send-only-imm", 0x05, False, None, True, 0),
    ("write-first", 0x06, True, None, False, 256),
    ("write-middle", 0x07, False, None, False, 256),
    ("write-last", 0x08, False, None, False, 1),
    ("write-last-imm", 0x09, False, None, True, 2),
    ("write-only", 0x0A, True, None, False, 44),
    ("write-only-imm", 0x0B, True, None, True, 3),
    ("read-request", 0x0C, True, None, False, 0),
    ("read-resp-first", 0x0D, False, 0x1F, False, 256),
    ("read-resp-middle", 0x0E, False, None, False, 256),
    ("read-resp-last", 0x0F, False, 0x1F, False, 5),
    ("read-resp-only", 0x10, False, 0x1F, False, 16),
    ("ack", 0x11, False, 0x1F, False, 0),
    ("rnr-nak", 0x11, False, 0x20 | 12, False, 0),
    ("nak-sequence", 0x11, False, 0x60, False, 0),
]


def icrc(grh, bth, rest):
    """CRC-32 of the packet with all variant fields as ones."""
    g = bytearray(grh)
    g[0] |= 0x0F  # traffic class, flow label
    g[1:4] = b"\xff\xff\xff"
    g[7] = 0xFF  # hop limit
    b = bytearray(bth)
    b[4] = 0xFF  # FECN, BECN, reserved
    return zlib.crc32(b"\xff" * 8 + bytes(g) + bytes(b) + rest)


def frame(i, op, reth, syndrome, imm, n):
    pad = -n % 4
    bth = struct.pack(">BBHII", op, 0x80 | pad << 4, 0xFFFF, 0x00ABCDE0 + i, 0x80123400 + i)
    rest = b""
    if reth:
        rest += struct.pack(">QII", 0x7F0011223344 + i, 0xDEADBE00 + i, n if op != 0x0C else 4096)
    if syndrome is not None:
        rest += struct.pack(">I", syndrome << 24 | 0x000700 + i)
    if imm:
        rest += struct.pack(">I", 0xCAFE0000 + i)
    rest += bytes((i + k) & 0xFF for k in range(n)) + bytes(pad)
    length = len(bth) + len(rest) + 4
    grh = struct.pack(">IHBB", 6 << 28 | 0x21 << 20 | 0x54321, length, 0x1B, 64 - i) + SGID + DGID
    f = DST + SRC + struct.pack(">H", 0x8915) + grh + bth + rest
    f += struct.pack("<I", icrc(grh, bth, rest))
    return f + bytes(max(0, 60 - len(f)))


for i, (name, *args) in enumerate(FRAMES):
    print(name, frame(i, *args).hex())
