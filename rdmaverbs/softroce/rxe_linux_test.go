// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// kernelPeer is testdata/verbs_peer.py: a queue pair of the kernel's rxe.
type kernelPeer struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

type peerAnswer struct {
	Error  string
	GID    string
	QPN    uint32
	RKey   uint32
	Addr   uint64
	SHA256 string
	WCs    []struct {
		ID     uint64
		Status int
		Op     int
		Len    int
		Imm    uint32
	}
}

func (p *kernelPeer) do(cmd string, args map[string]any) peerAnswer {
	p.t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	args["cmd"] = cmd
	line, err := json.Marshal(args)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(p.in, "%s\n", line); err != nil {
		p.t.Fatal(err)
	}
	var a peerAnswer
	if !p.out.Scan() {
		p.t.Fatalf("%s: peer ended: %v", line, p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &a); err != nil || a.Error != "" {
		p.t.Fatalf("%s: answer %s: %v", line, p.out.Bytes(), err)
	}
	return a
}

// ok waits for n successful completions.
func (p *kernelPeer) ok(n int) peerAnswer {
	p.t.Helper()
	a := p.do("wait", map[string]any{"n": n})
	if len(a.WCs) != n {
		p.t.Fatalf("%d completions of the kernel's queue pair, want %d: %+v", len(a.WCs), n, a.WCs)
	}
	for _, wc := range a.WCs {
		if wc.Status != 0 {
			p.t.Fatalf("kernel completion %+v", wc)
		}
	}
	return a
}

func (p *kernelPeer) sum(off, n int) string {
	p.t.Helper()
	return p.do("sum", map[string]any{"off": off, "len": n}).SHA256
}

func hexSum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// TestKernelRXE exchanges every operation in both directions between a queue
// pair of softroce and one of the kernel's soft-RoCE, with RoCE version 2. It
// needs a kernel with rdma_rxe, which uses the first network namespace only,
// and python3-pyverbs.
func TestKernelRXE(t *testing.T) {
	needRXE(t)
	hosts := netnstest.New(t, netnstest.Options{MTU: 9000})
	dev := fmt.Sprintf("rx%d", os.Getpid()%100000)
	// One end of the veth pair comes to the first namespace.
	ip(t, hosts.B, "link", "set", "eth0", "netns", "1", "name", dev)
	t.Cleanup(func() { exec.Command("ip", "link", "del", dev).Run() })
	addr := hosts.B.Links[0].IPv4
	run(t, "ip", "addr", "add", addr.String()+"/24", "dev", dev)
	run(t, "ip", "link", "set", dev, "up")
	run(t, "modprobe", "rdma_rxe")
	run(t, "rdma", "link", "add", "rxe_"+dev, "type", "rxe", "netdev", dev)
	t.Cleanup(func() { exec.Command("rdma", "link", "del", "rxe_"+dev).Run() })

	d := openIn(t, hosts.A, "eth0")
	for _, mtu := range []smc.MTU{smc.MTU256, smc.MTU1024, smc.MTU4096} {
		t.Run(fmt.Sprint(mtu.Bytes()), func(t *testing.T) { checkRXE(t, d, "rxe_"+dev, addr, mtu) })
	}
	t.Logf("%+v", d.Counters())
}

// gidIndex finds the kernel's GID table entry of an address.
func gidIndex(t *testing.T, device string, addr netip.Addr) string {
	t.Helper()
	want := smc.GID(addr.As16()).String()
	for i := range 16 {
		b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/gids/%d", device, i))
		if err == nil && strings.TrimSpace(string(b)) == want {
			return fmt.Sprint(i)
		}
	}
	t.Fatalf("%s has no GID %s", device, want)
	return ""
}

func checkRXE(t *testing.T, d *Device, device string, addr netip.Addr, mtu smc.MTU) {
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "testdata/verbs_peer.py", device, gidIndex(t, device, addr))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
	})
	p := &kernelPeer{t: t, in: in, out: bufio.NewScanner(out)}
	them := p.do("info", nil)

	end := endFor(t, d, d, rdmaverbs.RoCEv2)
	end.DMAC = nil
	a, _ := verbstest.Create(t, verbstest.Pair{A: end, B: end}, verbstest.Config{MTU: mtu, PSN: 0xfffff0, Reads: 4, Timeout: 17})
	a.Path.DGID, a.Path.DQPN = addr.As16(), them.QPN
	a.ToRTS()
	gids, _ := d.GIDs(1)
	p.do("connect", map[string]any{
		"gid": gids[end.SGIDIndex].GID.String(), "qpn": a.QP.QPN(), "mtu": int(mtu), "rq_psn": a.Path.SQPSN, "sq_psn": a.Path.RQPSN,
	})

	const size = 100001
	m, buf := a.MR(1<<20, verbstest.All)
	for i := range buf {
		buf[i] = byte(i * 13 >> 3)
	}
	sg := func(off, n int) [2]rdmaverbs.SGE {
		return [2]rdmaverbs.SGE{{MR: m, Off: off, Len: n / 2}, {MR: m, Off: off + n/2, Len: n - n/2}}
	}
	for i, n := range []int{1, 44, mtu.Bytes(), mtu.Bytes() + 1, size} {
		id := uint64(i)
		// softroce to the kernel: SEND with immediate, WRITE, READ.
		p.do("recv", map[string]any{"id": id, "off": 0, "len": size})
		a.Send(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpSendImm, Imm: 0x01020304, Flags: rdmaverbs.Signaled, SG: sg(i, n)})
		a.OK(id, 1)
		if wc := p.ok(1).WCs[0]; wc.Len != n {
			t.Errorf("SEND of %d bytes: kernel received %d", n, wc.Len)
		}
		if p.sum(0, n) != hexSum(buf[i:i+n]) {
			t.Errorf("SEND of %d bytes differs", n)
		}
		a.Send(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: sg(2*i, n), RemoteAddr: them.Addr + 200000, RKey: them.RKey})
		a.OK(id, 1)
		if p.sum(200000, n) != hexSum(buf[2*i:2*i+n]) {
			t.Errorf("WRITE of %d bytes differs", n)
		}
		p.do("fill", map[string]any{"seed": i, "off": 300000, "len": n})
		a.Send(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpRead, Flags: rdmaverbs.Signaled, SG: sg(500000, n), RemoteAddr: them.Addr + 300000, RKey: them.RKey})
		a.OK(id, 1)
		if p.sum(300000, n) != hexSum(buf[500000:500000+n]) {
			t.Errorf("READ of %d bytes differs", n)
		}

		// The kernel to softroce.
		a.Recv(rdmaverbs.RecvWR{ID: id, SG: rdmaverbs.SGE{MR: m, Off: 600000, Len: size}})
		p.do("post", map[string]any{"id": id, "op": "send", "off": 300000, "len": n})
		if wc := a.OKRecv(id, 1)[0]; wc.Len != n || hexSum(buf[600000:600000+n]) != p.sum(300000, n) {
			t.Errorf("SEND of %d bytes from the kernel: %+v", n, wc)
		}
		a.Recv(rdmaverbs.RecvWR{ID: id})
		p.do("post", map[string]any{"id": id, "op": "write_imm", "off": 300000, "len": n, "addr": m.Addr() + 700000, "rkey": m.RKey(), "imm": 7})
		if wc := a.OKRecv(id, 1)[0]; wc.Op != rdmaverbs.WCRecvWriteImm || hexSum(buf[700000:700000+n]) != p.sum(300000, n) {
			t.Errorf("WRITE of %d bytes from the kernel: %+v", n, wc)
		}
		p.ok(2)
		p.do("post", map[string]any{"id": id, "op": "read", "off": 400000, "len": n, "addr": m.Addr() + uint64(3*i), "rkey": m.RKey()})
		p.ok(1)
		if p.sum(400000, n) != hexSum(buf[3*i:3*i+n]) {
			t.Errorf("READ of %d bytes by the kernel differs", n)
		}
	}

	// Receiver not ready, in both directions: both wait for the receive
	// request.
	before := d.Counters()
	a.Send(rdmaverbs.SendWR{ID: 50, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled, SG: sg(0, 10)})
	rnr := func(what string, count func(Counters) uint64, before Counters) {
		t.Helper()
		testkind.Eventually(t, what, func() (any, bool) {
			now := d.Counters()
			return now, count(now) > count(before)
		})
	}
	rnr("the kernel says that it is not ready", func(c Counters) uint64 { return c.RNRReceived }, before)
	a.None(a.SendCQ)
	p.do("recv", map[string]any{"id": 50, "off": 0, "len": 100})
	a.OK(50, 1)
	p.ok(1)
	p.do("post", map[string]any{"id": 51, "op": "send", "off": 0, "len": 10})
	rnr("softroce says that it is not ready", func(c Counters) uint64 { return c.RNRSent }, before)
	a.Recv(rdmaverbs.RecvWR{ID: 51, SG: rdmaverbs.SGE{MR: m, Len: 100}})
	a.OKRecv(51, 1)
	p.ok(1)

	// No access right, in both directions: a NAK of the kernel, and one of
	// softroce.
	if mtu == smc.MTU256 {
		a.Send(rdmaverbs.SendWR{ID: 60, Op: rdmaverbs.OpWrite, SG: sg(0, 10), RemoteAddr: them.Addr, RKey: them.RKey ^ 0xff})
		a.Fails(a.SendCQ, 60, rdmaverbs.StatusRemAccessErr)
		return
	}
	p.do("post", map[string]any{"id": 61, "op": "write", "off": 0, "len": 10, "addr": m.Addr(), "rkey": m.RKey() ^ 0x10000})
	if wc := p.do("wait", map[string]any{"n": 1}).WCs; len(wc) != 1 || wc[0].Status != 10 { // IBV_WC_REM_ACCESS_ERR
		t.Errorf("kernel completions after a wrong key: %+v", wc)
	}
}
