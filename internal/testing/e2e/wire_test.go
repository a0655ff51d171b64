// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// maxTCPPayload is what one connection may carry over TCP: the CLC handshake, at most
// three messages of a few hundred bytes.
const maxTCPPayload = 2 << 10

// Captured bytes of each packet: all headers and the LLC or CDC message of a RoCE frame;
// all headers and the CLC message of a TCP segment.
const (
	roceHeaders = 128
	tcpHeaders  = 512
)

const roceFilter = "ether proto 0x8915 or udp port 4791"

// wire captures the link of host A: RoCE of both versions in one capture, only the
// headers, and everything else in another one. So a flood of RoCE does not cause losses
// in the second capture.
type wire struct {
	roce, rest *netnstest.Capture
}

func (l *lab) watch() *wire {
	l.t.Helper()
	rest := onWire(l.A, "not ("+roceFilter+")")
	return &wire{
		roce: l.A.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: roceHeaders, Filter: roceFilter}),
		rest: l.A.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: tcpHeaders, Filter: rest}),
	}
}

// onWire leaves out of a filter what a stack gives to a program: it passes the device, and has no address of it.
func onWire(h *netnstest.Host, filter string) string {
	return filter + " and ether host " + h.Links[0].MAC.String()
}

// seen has what was captured.
type seen struct {
	*netnstest.Traffic // without RoCE
	roce               netnstest.Tally
	missed             int // RoCE frames that tcpdump has missed
	wire               *wire
}

func (w *wire) stop(t testing.TB) *seen {
	t.Helper()
	s := &seen{wire: w}
	var err error
	if s.missed, err = w.roce.Stop(); err != nil {
		t.Fatal(err)
	}
	dropped, err := w.rest.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if dropped > 0 {
		t.Fatalf("the capture of TCP missed %d packets", dropped)
	}
	roce, err := w.roce.Count()
	if err != nil {
		t.Fatal(err)
	}
	s.roce = netnstest.Tally{
		Packets: roce.RoCEv1.Packets + roce.RoCEv2.Packets,
		Bytes:   roce.RoCEv1.Bytes + roce.RoCEv2.Bytes,
		Payload: roce.RoCEv1.Payload + roce.RoCEv2.Payload,
	}
	if s.Traffic, err = w.rest.Count(); err != nil {
		t.Fatal(err)
	}
	t.Logf("on the wire: RoCE %d frames, %d bytes (%d frames missed); TCP %d connections, %d bytes of payload, at most %d in one",
		s.roce.Packets, s.roce.Bytes, s.missed, len(s.Flows), s.TCP.Payload, s.MaxFlowPayload())
	return s
}

// wantSMC checks on the wire that there were at least conns connections and that all used
// SMC-R: the option in both directions, almost no payload over TCP, and at least payload
// bytes over RoCE.
func (s *seen) wantSMC(t testing.TB, conns int, payload int64) {
	t.Helper()
	if len(s.Flows) < conns {
		t.Errorf("%d TCP connections, want at least %d", len(s.Flows), conns)
	}
	if s.SMCSYNs != s.SYNs || s.SMCSYNACKs != s.SYNACKs || s.SYNACKs < conns {
		t.Errorf("SMC option in %d of %d SYN and in %d of %d SYN-ACK, want all of at least %d", s.SMCSYNs, s.SYNs, s.SMCSYNACKs, s.SYNACKs, conns)
	}
	big := 0
	for flow, tally := range s.Flows {
		if tally.Payload < maxTCPPayload {
			continue
		}
		if big++; big <= 3 {
			t.Errorf("connection %v-%v carried %d bytes in TCP, want less than %d", flow.A, flow.B, tally.Payload, maxTCPPayload)
		}
	}
	if big > 3 {
		t.Errorf("%d of %d connections carried %d bytes or more in TCP", big, len(s.Flows), maxTCPPayload)
	}
	// For frames that were missed, add the mean size of the others.
	got := s.roce.Payload
	if s.roce.Packets > 0 {
		got += int64(s.missed) * (s.roce.Payload / int64(s.roce.Packets))
	}
	if got < payload {
		t.Errorf("RoCE carried %d bytes, want at least %d", got, payload)
	}
}

// wantPlain checks that the connections used plain TCP: there was no RoCE and no CLC
// message.
func (s *seen) wantPlain(t testing.TB, conns int, payload int64) {
	t.Helper()
	if len(s.Flows) < conns || s.TCP.Payload < payload {
		t.Errorf("%d TCP connections with %d bytes, want at least %d with %d", len(s.Flows), s.TCP.Payload, conns, payload)
	}
	if s.roce.Packets > 0 {
		t.Errorf("%d RoCE packets, want none", s.roce.Packets)
	}
	if s.SMCSYNACKs > 0 {
		t.Errorf("the SMC option in %d SYN-ACK, want none", s.SMCSYNACKs)
	}
	if clc := tshark(t, s.wire.rest.File, "smc", "smc.clc_msg"); len(clc) > 0 {
		t.Errorf("tshark sees CLC messages %v in a plain TCP connection", clc)
	}
}

// tshark returns the values of a field in the packets of a capture that match the display
// filter, from the first 5000 packets. Tests that call it require "tshark".
func tshark(t testing.TB, file, filter, field string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// The ports of the tests belong to other protocols, so heuristics come first.
	cmd := exec.CommandContext(ctx, "tshark", "-n", "-r", file, "-c", "5000",
		"-o", "tcp.try_heuristic_first:TRUE", "-Y", filter, "-T", "fields", "-e", field)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &stderr)
	}
	return strings.Fields(string(out))
}

// Message types in the output of tshark (RFC 7609, appendix A).
const (
	clcProposal, clcAccept, clcConfirm = "1", "2", "3"
	llcConfirmLink, llcCDC             = "0x01", "0xfe"
)

// wantDissection checks that tshark, which has an independent decoder, names the messages
// of a first contact and finds nothing malformed.
func (s *seen) wantDissection(t testing.TB) {
	t.Helper()
	clc := tshark(t, s.wire.rest.File, "smc.clc_msg", "smc.clc_msg")
	llc := tshark(t, s.wire.roce.File, "smc.llc_msg", "smc.llc_msg")
	for _, want := range []struct {
		name, value string
		in          []string
	}{
		{"CLC Proposal", clcProposal, clc}, {"CLC Accept", clcAccept, clc}, {"CLC Confirm", clcConfirm, clc},
		{"LLC Confirm Link", llcConfirmLink, llc}, {"CDC", llcCDC, llc},
	} {
		if !slices.Contains(want.in, want.value) {
			t.Errorf("tshark sees no %s; CLC %v, LLC and CDC %v", want.name, head(clc), head(llc))
		}
	}
	// tshark does not call a frame malformed that the capture has cut. It takes the data of an RDMA write for a message
	// if the first bytes look like one: random data does, now and then.
	const malformed = "_ws.malformed && !(infiniband.bth.opcode >= 6 && infiniband.bth.opcode <= 11)"
	for _, file := range []string{s.wire.rest.File, s.wire.roce.File} {
		if bad := tshark(t, file, malformed, "frame.number"); len(bad) > 0 {
			text, err := exec.CommandContext(t.Context(), "tshark", "-n", "-r", file, "-Y", "frame.number == "+bad[0], "-V", "-x").Output()
			t.Errorf("tshark finds frames %v of %s malformed; the first one (%v):\n%s", head(bad), file, err, text)
		}
	}
}

func head(s []string) string {
	if len(s) > 20 {
		return fmt.Sprintf("%v… (%d)", s[:20], len(s))
	}
	return fmt.Sprint(s)
}
