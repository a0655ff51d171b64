// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"

	"github.com/google/go-cmp/cmp"
)

// traceServer returns what it receives, and ends after two connections.
const traceServer = `
import socket, sys
l = socket.socket()
l.bind((sys.argv[1], 7400)); l.listen(8)
print('listening', flush=True)
for _ in range(2):
    c, _ = l.accept()
    while b := c.recv(65536): c.sendall(b)
    c.close()
`

// traceClient has two connections at a time, on one link group.
const traceClient = `
import socket, sys
for n in (26, 3000):
    s = socket.create_connection((sys.argv[1], 7400))
    s.sendall(b'secret of a program, 26 bytes '[:26] + b'x' * (n - 26))
    got = 0
    while got < n: got += len(s.recv(65536))
    s.close()
`

// traced is an event of smcr trace in JSON.
type traced struct {
	Type        string         `json:"type"`
	Source      string         `json:"source"`
	Destination string         `json:"destination"`
	LinkGroup   string         `json:"link_group"`
	SourceQPN   string         `json:"source_qpn"`
	DestQPN     string         `json:"destination_qpn"`
	Message     string         `json:"message"`
	Reply       bool           `json:"reply"`
	Connection  string         `json:"connection"`
	Fault       string         `json:"fault"`
	Fields      map[string]any `json:"fields"`
}

// parseTrace returns the events in the output of smcr trace -o json.
func parseTrace(t *testing.T, out string) (events []traced) {
	t.Helper()
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			continue // of standard error
		}
		var e traced
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		events = append(events, e)
	}
	return events
}

// said returns the messages that went from one host, in order: CLC, and what went over the
// link. It leaves out repetitions: on a busy machine, packets are sent again.
func said(events []traced, from *netnstest.Host) (clc, link []string) {
	seen := map[string]bool{}
	for _, e := range events {
		src, _, _ := strings.Cut(e.Source, ":")
		if src != from.Addr() || e.Type == "roce" {
			continue
		}
		line := fmt.Sprintf("%s %s reply=%t to %s fields=%v fault=%q", e.Type, e.Message, e.Reply, e.Destination, e.Fields, e.Fault)
		if seen[line] {
			continue
		}
		seen[line] = true
		if e.Type == "clc" {
			clc = append(clc, line)
		} else {
			link = append(link, line+" qp "+e.DestQPN)
		}
	}
	return clc, link
}

// TestTrace traces both stacks of a connection, one by messages and one by packets, and
// compares what they show with each other and with a capture of the wire. Wireshark's
// dissectors read the files that they write.
func TestTrace(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "tshark", "setpriv")
	for _, h := range []*netnstest.Host{l.A, l.B} {
		l.serveAsIs(h)
	}
	dir := t.TempDir()
	files := map[*netnstest.Host]string{l.A: filepath.Join(dir, "a.pcapng"), l.B: filepath.Join(dir, "b.pcapng")}
	traces := map[*netnstest.Host]*netnstest.Process{}
	for h, types := range map[*netnstest.Host]string{l.A: "clc,llc,cdc", l.B: "all"} {
		traces[h] = h.Go(t, bin("smcr"), "trace", "-o", "json", "--type", types, "--pcapng", files[h])
		if err := traces[h].WaitOutput("tracing the user stack", startTime); err != nil {
			t.Fatal(err)
		}
	}
	wire := l.A.StartCapture(t, netnstest.CaptureOptions{})
	server := l.under(l.B, "/usr/bin/python3", "-u", "-c", traceServer, l.B.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	client := l.under(l.A, "/usr/bin/python3", "-u", "-c", traceClient, l.B.Addr())
	wantEnd(t, client)
	wantEnd(t, server)
	wantSummary(t, client.Log(), 2)
	l.wantNoConnections(l.A, l.B)
	if dropped, err := wire.Stop(); err != nil || dropped > 0 {
		t.Fatal(dropped, err)
	}

	l.traceRights()
	shown := map[*netnstest.Host][]traced{}
	for h, p := range traces {
		terminate(t, p)
		shown[h] = parseTrace(t, p.Log())
		if strings.Contains(p.Log(), "lost") {
			t.Errorf("%s", p.Log())
		}
	}
	onWire := parseTrace(t, l.smcr(l.A, "trace", "-r", wire.File, "-o", "json"))
	for _, from := range []*netnstest.Host{l.A, l.B} {
		wantCLC, wantLink := said(onWire, from)
		if len(wantCLC) < 2 || len(wantLink) < 6 {
			t.Errorf("%s sent only %q, %q", from.Name, wantCLC, wantLink)
		}
		for _, h := range []*netnstest.Host{l.A, l.B} {
			clc, link := said(shown[h], from)
			if d := cmp.Diff(wantCLC, clc); d != "" {
				t.Errorf("CLC of %s: wire (-), trace of %s (+):\n%s", from.Name, h.Name, d)
			}
			// A connection that ends can leave messages behind the last one of the capture.
			if d := cmp.Diff(wantLink, link[:min(len(link), len(wantLink))]); d != "" {
				t.Errorf("LLC and CDC of %s: wire (-), trace of %s (+):\n%s", from.Name, h.Name, d)
			}
		}
	}
	for h, events := range shown {
		l.checkTrace(h, events)
		checkPcapng(t, files[h], events)
	}
}

// checkTrace checks what only the stack knows: link groups, and the connections of all CDC
// messages.
func (l *lab) checkTrace(h *netnstest.Host, events []traced) {
	l.t.Helper()
	kinds := map[string]int{}
	for _, e := range events {
		kinds[e.Type]++
		switch {
		case e.Fault != "":
			l.t.Errorf("%s: fault in %+v", h.Name, e)
		case e.Type != "clc" && (e.LinkGroup == "" || e.SourceQPN == "" || e.DestQPN == ""):
			l.t.Errorf("%s: link group or queue pair of %+v", h.Name, e)
		case e.Type == "cdc" && e.Connection == "":
			l.t.Errorf("%s: connection of %+v", h.Name, e)
		}
	}
	if kinds["clc"] != 6 || kinds["llc"] < 4 || kinds["cdc"] < 8 || (kinds["roce"] > 20) != (h == l.B) {
		l.t.Errorf("%s: events %v", h.Name, kinds)
	}
}

// checkPcapng reads a file of a trace with tshark and compares the messages.
func checkPcapng(t *testing.T, file string, events []traced) {
	t.Helper()
	cmd := exec.Command("tshark", "-n", "-r", file, "-o", "tcp.try_heuristic_first:TRUE", "--disable-protocol", "rpcordma",
		"-T", "fields", "-E", "separator=/t", "-e", "frame.protocols", "-e", "smc.clc_msg", "-e", "smc.llc_msg", "-e", "infiniband.bth.opcode",
		"-e", "_ws.malformed", "-e", "frame.comment")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	got := map[string]int{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if f[4] != "" || f[5] == "" {
			t.Errorf("%s: %q", filepath.Base(file), f)
		}
		switch {
		case f[1] != "":
			got["clc"]++
		case f[2] == "0xfe":
			got["cdc"]++
		case strings.Contains(f[0], "infiniband"):
			got["other"]++
		}
	}
	want := map[string]int{}
	packets := 0
	for _, e := range events {
		switch e.Type {
		case "roce":
			packets++
		case "llc":
			want["other"]++ // tshark 4.0 does not know those of version 2
		default:
			want[e.Type]++
		}
	}
	if packets > 0 {
		want["other"] = packets - want["cdc"]
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: trace (-), tshark (+):\n%s", filepath.Base(file), d)
	}
	b, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(b), "secret of a program") {
		t.Errorf("%s has data of a program, or %v", filepath.Base(file), err)
	}
}

// traceRights checks that another user cannot trace, and that the number of traces is limited.
func (l *lab) traceRights() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), commandTime)
	defer cancel()
	out, err := l.A.Command(ctx, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", bin("smcr"), "trace", "-c", "1").CombinedOutput()
	const denied = "smcr: operation not permitted: only root and the user who runs the smcr stack may trace it\n"
	if err == nil || string(out) != denied {
		l.t.Errorf("trace as another user: %v, %q", err, out)
	}
	for i := range 4 {
		p := l.A.Go(l.t, bin("smcr"), "trace")
		want := "tracing the user stack"
		if i == 3 { // one is there from the beginning
			want = "there are 4 traces already, as many as a stack has at most"
		}
		if err := p.WaitOutput(want, startTime); err != nil {
			l.t.Errorf("trace %d: %v\n%s", i+2, err, p.Log())
		}
		defer p.Kill()
	}
}
