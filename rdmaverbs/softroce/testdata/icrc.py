#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print for each RoCE frame of a pcap file: number, encapsulation, ICRC in
the frame, ICRC as computed here, ICRC as scapy computes it ("-" where scapy
cannot: RoCE version 1 and IPv6).

Written from the InfiniBand Architecture Specification, volume 1, section
7.8.1, and annexes A16 and A17, independent of the Go code that it checks.
"""
import logging
import struct
import sys
import zlib

logging.getLogger("scapy").setLevel(logging.ERROR)
try:
    from scapy.all import Ether
    from scapy.contrib.roce import BTH
except ImportError:
    Ether = BTH = None


def frames(name):
    with open(name, "rb") as f:
        b = f.read()
    assert b[:4] == b"\xd4\xc3\xb2\xa1", "not a little-endian pcap file"
    at = 24
    while at < len(b):
        n, orig = struct.unpack_from("<II", b, at + 8)
        assert n == orig, "frame is cut"
        yield b[at + 16:at + 16 + n]
        at += 16 + n


def masked_bth(bth):
    return bth[:4] + b"\xff" + bth[5:]


def masked_ip6(h):
    """Also a GRH: traffic class, flow label and hop limit vary."""
    return bytes([h[0] | 0x0F, 0xFF, 0xFF, 0xFF]) + h[4:7] + b"\xff" + h[8:40]


def split(frame):
    """Return kind, masked headers below the BTH, BTH to ICRC."""
    ethertype = frame[12:14]
    p = frame[14:]
    if ethertype == b"\x89\x15":
        end = 40 + struct.unpack(">H", p[4:6])[0]
        return "v1", masked_ip6(p), p[40:end]
    if ethertype == b"\x08\x00" and p[9] == 17:
        end = struct.unpack(">H", p[2:4])[0]
        ip = p[:1] + b"\xff" + p[2:8] + b"\xff" + p[9:10] + b"\xff\xff" + p[12:20]
        udp, kind, at = p[20:28], "v2/4", 28
    elif ethertype == b"\x86\xdd" and p[6] == 17:
        end = 40 + struct.unpack(">H", p[4:6])[0]
        ip, udp, kind, at = masked_ip6(p), p[40:48], "v2/6", 48
    else:
        return None
    if udp[2:4] != struct.pack(">H", 4791):
        return None
    return kind, ip + udp[:6] + b"\xff\xff", p[at:end]


def scapy_icrc(frame):
    if Ether is None:
        return "no-scapy"
    pkt = Ether(frame)
    return pkt[BTH].compute_icrc(None).hex()


for i, frame in enumerate(frames(sys.argv[1]), 1):
    parts = split(frame)
    if parts is None:
        continue
    kind, below, b = parts
    crc = zlib.crc32(b"\xff" * 8 + below + masked_bth(b[:12]) + b[12:-4])
    other = scapy_icrc(frame) if kind == "v2/4" else "-"
    print(i, kind, b[-4:].hex(), struct.pack("<I", crc).hex(), other)
