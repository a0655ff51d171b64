// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"

	"github.com/google/go-cmp/cmp"
)

// tsharkNames are the names that Wireshark gives to the RC opcodes.
var tsharkNames = map[header.Opcode]string{
	header.SendFirst:     "RC Send First",
	header.SendMiddle:    "RC Send Middle",
	header.SendLast:      "RC Send Last",
	header.SendLastImm:   "RC Send Last Immediate",
	header.SendOnly:      "RC Send Only",
	header.SendOnlyImm:   "RC Send Only Immediate",
	header.WriteFirst:    "RC RDMA Write First",
	header.WriteMiddle:   "RC RDMA Write Middle",
	header.WriteLast:     "RC RDMA Write Last",
	header.WriteLastImm:  "RC RDMA Write Last Immediate",
	header.WriteOnly:     "RC RDMA Write Only",
	header.WriteOnlyImm:  "RC RDMA Write Only Immediate",
	header.ReadRequest:   "RC RDMA Read Request",
	header.ReadRespFirst: "RC RDMA Read Response First",
	header.ReadRespMid:   "RC RDMA Read Response Middle",
	header.ReadRespLast:  "RC RDMA Read Response Last",
	header.ReadRespOnly:  "RC RDMA Read Response Only",
	header.Acknowledge:   "RC Acknowledge",
}

// oraclePackets are packets of every opcode and of various lengths, so that
// there are UDP_SEGMENT messages with one packet and with many.
func oraclePackets(full int) (pkts []packet) {
	for op := header.SendFirst; op <= header.Acknowledge; op++ {
		lengths := []int{0, 1, 2, 3, 44, full, full, full}
		if !op.HasPayload() {
			lengths = lengths[:1]
		}
		for _, n := range lengths {
			pkts = append(pkts, testPacket(op, 0xfff000+uint32(len(pkts)), n))
		}
	}
	return pkts
}

// captureAll sends the packets over each encapsulation and returns a capture
// of what was on the link.
func captureAll(t *testing.T, pair *netnstest.Pair) (file string, pkts []packet, kinds []string) {
	t.Helper()
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	la, lb := pair.A.Links[0], pair.B.Links[0]
	pkts = oraclePackets(1024)
	capture := pair.B.StartCapture(t, netnstest.CaptureOptions{Filter: "ether proto 0x8915 or udp port 4791"})
	kinds = []string{"v1", "v2/4", "v2/6"}
	for i, p := range []*path{a.pathV1(b), pathV2(la.IPv4, lb.IPv4), pathV2(la.IPv6, lb.IPv6)} {
		if err := a.send(p, pkts); err != nil {
			t.Fatal(err)
		}
		b.wait(t, (i+1)*len(pkts))
	}
	if dropped, err := capture.Stop(); err != nil || dropped > 0 {
		t.Fatalf("capture: %d dropped, %v", dropped, err)
	}
	if s := b.counters(); s.dropped() != 0 {
		t.Errorf("receiver's counters %+v", s)
	}
	return capture.File, pkts, kinds
}

// cutInSoftware makes the kernel of host split UDP_SEGMENT messages and compute
// checksums before the frames reach the link, as on a NIC without offloads.
func cutInSoftware(t *testing.T, h *netnstest.Host) {
	t.Helper()
	netnstest.Require(t, "ethtool")
	if out, err := h.Output(t.Context(), "ethtool", "-K", "eth0", "tx-udp-segmentation", "off", "tx", "off"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// TestOracleTshark lets the dissector of Wireshark read every kind of frame
// that softroce sends, and compares the fields with those that were sent.
func TestOracleTshark(t *testing.T) {
	netnstest.Require(t, "tshark", "tcpdump")
	pair := netnstest.New(t, netnstest.Options{})
	cutInSoftware(t, pair.A)
	file, pkts, kinds := captureAll(t, pair)

	fields := []string{
		"_ws.col.Info", "_ws.malformed", "infiniband.bth.opcode", "infiniband.bth.padcnt", "infiniband.bth.tver",
		"infiniband.bth.p_key", "infiniband.bth.destqp", "infiniband.bth.a", "infiniband.bth.psn",
		"infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen",
		"infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.immdt", "ip.checksum.status", "udp.checksum.status",
	}
	// The dissector would try to find protocols in the payload.
	args := []string{"-r", file, "--disable-protocol", "rpcordma", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields", "-E", "occurrence=f"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	rows := toolOutput(t, "tshark", args...)
	if len(rows) != len(kinds)*len(pkts) {
		t.Fatalf("%d frames, want %d", len(rows), len(kinds)*len(pkts))
	}
	for i, row := range rows {
		kind, p := kinds[i/len(pkts)], pkts[i%len(pkts)]
		got := make(map[string]string)
		for k, v := range strings.Split(row, "\t") {
			if v != "" {
				got[fields[k]] = v
			}
		}
		info, _, _ := strings.Cut(got["_ws.col.Info"], " QP=")
		got["_ws.col.Info"] = strings.TrimSpace(info)
		want := tsharkWant(kind, p)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("frame %d (%s, %v) (-want +got)\n%s", i+1, kind, header.BTH(p.hdr).Opcode(), d)
		}
	}
}

// tsharkWant are the fields that tshark should show of p.
func tsharkWant(kind string, p packet) map[string]string {
	bth := header.BTH(p.hdr)
	op := bth.Opcode()
	w := map[string]string{
		"_ws.col.Info":           tsharkNames[op],
		"infiniband.bth.opcode":  strconv.Itoa(int(op)),
		"infiniband.bth.padcnt":  strconv.Itoa(int(bth.PadCount())),
		"infiniband.bth.tver":    "0",
		"infiniband.bth.p_key":   "65535",
		"infiniband.bth.destqp":  "0x112233",
		"infiniband.bth.a":       "1",
		"infiniband.bth.psn":     strconv.Itoa(int(bth.PSN())),
		"infiniband.reth.va":     "0x0102030405060708",
		"infiniband.reth.r_key":  "0xa0b0c0d0",
		"infiniband.reth.dmalen": strconv.Itoa(len(p.payload[0]) + len(p.payload[1])),
	}
	if !op.HasRETH() {
		for k := range w {
			if strings.HasPrefix(k, "infiniband.reth.") {
				delete(w, k)
			}
		}
	}
	if op.HasAETH() {
		w["infiniband.aeth.syndrome"] = "31"
		w["infiniband.aeth.msn"] = "7"
	}
	if op.HasImmDt() {
		w["infiniband.immdt"] = "cafef00d"
	}
	if kind != "v1" {
		w["udp.checksum.status"] = "1" // good
	}
	if kind == "v2/4" {
		w["ip.checksum.status"] = "1"
	}
	return w
}

// TestOracleICRC compares the ICRC of every kind of frame that softroce sends
// with that of a Python program and of scapy, also with the identifications
// that the kernel gives to the parts of a UDP_SEGMENT message.
func TestOracleICRC(t *testing.T) {
	python := pythonWithScapy(t)
	pair := netnstest.New(t, netnstest.Options{})
	cutInSoftware(t, pair.A)
	file, pkts, kinds := captureAll(t, pair)
	rows := toolOutput(t, python, "testdata/icrc.py", file)
	if len(rows) != len(kinds)*len(pkts) {
		t.Fatalf("%d frames, want %d", len(rows), len(kinds)*len(pkts))
	}
	for i, row := range rows {
		f := strings.Fields(row) // number, kind, in the frame, by zlib, by scapy
		kind := kinds[i/len(pkts)]
		scapy := "-"
		if kind == "v2/4" {
			scapy = f[2]
		}
		if f[1] != kind || f[3] != f[2] || f[4] != scapy {
			t.Errorf("frame %d (%v): %s", i+1, header.BTH(pkts[i%len(pkts)].hdr).Opcode(), row)
		}
	}
}

func pythonWithScapy(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(p, "-c", "import scapy.contrib.roce").Run() == nil {
			return p
		}
	}
	missing := t.Skipf
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
		missing = t.Fatalf
	}
	missing("needs Python with scapy: run `sudo scripts/setup-test-tools`")
	return ""
}

// toolOutput returns the lines that a program prints.
func toolOutput(t *testing.T, name string, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		var text string
		if ee, ok := err.(*exec.ExitError); ok {
			text = string(ee.Stderr)
		}
		t.Fatal(fmt.Errorf("%s: %w: %s", name, err, text))
	}
	text := strings.TrimRight(string(out), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
