#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A reliable-connected queue pair of the kernel's verbs, for rxe_linux_test.go.

Takes a device and a GID index, then commands on standard input, one JSON
object a line, and answers each with one JSON object. Needs pyverbs (Debian:
python3-pyverbs).
"""
import hashlib
import json
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

SIZE = 1 << 20
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
OPS = {"send": e.IBV_WR_SEND, "send_imm": e.IBV_WR_SEND_WITH_IMM, "write": e.IBV_WR_RDMA_WRITE,
       "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM, "read": e.IBV_WR_RDMA_READ}


class Peer:
    def __init__(self, device, gid_index):
        self.gid_index = gid_index
        self.ctx = Context(name=device)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 256)
        self.mr = MR(self.pd, SIZE, ACCESS)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq,
                                         cap=QPCap(max_send_wr=64, max_recv_wr=64)))
        a = QPAttr(port_num=1)
        a.qp_access_flags = ACCESS
        self.qp.to_init(a)

    def info(self, _):
        return {"gid": self.ctx.query_gid(1, self.gid_index).gid, "qpn": self.qp.qp_num,
                "rkey": self.mr.rkey, "addr": self.mr.buf, "size": SIZE}

    def connect(self, c):
        a = QPAttr(port_num=1)
        a.path_mtu, a.dest_qp_num = c["mtu"], c["qpn"]
        a.rq_psn, a.sq_psn = c["rq_psn"], c["sq_psn"]
        a.max_rd_atomic = a.max_dest_rd_atomic = 4
        a.min_rnr_timer, a.timeout, a.retry_cnt, a.rnr_retry = 5, 17, 7, 7
        a.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(
            dgid=GID(c["gid"]), sgid_index=self.gid_index, hop_limit=64))
        self.qp.to_rts(a)
        return {}

    def recv(self, c):
        self.qp.post_recv(RecvWR(wr_id=c["id"], num_sge=1, sg=[SGE(self.mr.buf + c["off"], c["len"], self.mr.lkey)]))
        return {}

    def post(self, c):
        wr = SendWR(wr_id=c["id"], opcode=OPS[c["op"]], num_sge=1,
                    sg=[SGE(self.mr.buf + c["off"], c["len"], self.mr.lkey)], imm_data=c.get("imm", 0),
                    send_flags=e.IBV_SEND_SIGNALED)
        if "rkey" in c:
            wr.set_wr_rdma(c["rkey"], c["addr"])
        self.qp.post_send(wr)
        return {}

    def wait(self, c):
        out, end = [], time.monotonic() + 20
        while len(out) < c["n"] and time.monotonic() < end:
            n, wcs = self.cq.poll(c["n"] - len(out))
            out += [{"id": w.wr_id, "status": w.status, "op": w.opcode, "len": w.byte_len, "imm": w.imm_data} for w in wcs]
            if not n:
                time.sleep(0.001)
        return {"wcs": out}

    def fill(self, c):
        block = hashlib.sha256(str(c["seed"]).encode()).digest()
        self.mr.write((block * (c["len"] // 32 + 1))[:c["len"]], c["len"], c["off"])
        return {}

    def sum(self, c):
        return {"sha256": hashlib.sha256(self.mr.read(c["len"], c["off"])).hexdigest()}


def main():
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        c = json.loads(line)
        try:
            answer = getattr(peer, c["cmd"])(c)
        except Exception as err:  # the test shows it
            answer = {"error": repr(err)}
        print(json.dumps(answer), flush=True)


main()
