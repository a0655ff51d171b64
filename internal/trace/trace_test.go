// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/trace/capture"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// run runs the command with these arguments.
func run(t *testing.T, in []byte, args ...string) (out, errOut string, err error) {
	t.Helper()
	streams, sin, sout, serr := cmdutil.MemoryStreams()
	sin.Write(in)
	cmd := NewCmd(&cmdutil.Factory{IO: streams, Version: "1.2.3", Backend: "auto"})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return sout.String(), serr.String(), err
}

// mustRun is run without an error.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, errOut, err := run(t, nil, args...)
	if err != nil || errOut != "" {
		t.Fatalf("%q: %v, %q", args, err, errOut)
	}
	return out
}

// event is an event in JSON.
type event struct {
	Frame       int            `json:"frame"`
	Time        string         `json:"time"`
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

func parse(t *testing.T, out string) (events []event) {
	t.Helper()
	for line := range strings.Lines(out) {
		var e event
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		events = append(events, e)
	}
	return events
}

func TestGolden(t *testing.T) {
	for name, args := range map[string]string{
		"a_first_contact_echo.cli":      "-r testdata/a_first_contact_echo.cli.pcap --type all -v",
		"a_first_contact_echo.cli.json": "-r testdata/a_first_contact_echo.cli.pcap -o json",
		"two-rnics-v1.eth0":             "-r testdata/two-rnics-v1.eth0.pcap",
		"h4_client_no_ueid.cli":         "-r testdata/h4_client_no_ueid.cli.pcap",
	} {
		t.Run(name, func(t *testing.T) {
			out := mustRun(t, strings.Fields(args)...)
			if !strings.Contains(args, "json") {
				out = withoutHours(out)
			}
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), out); d != "" {
				t.Error(d)
			}
		})
	}
}

// withoutHours removes the hours: they are those of the time zone of the machine.
func withoutHours(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		b.WriteString(line[len("15:"):])
	}
	return b.String()
}

func TestFilters(t *testing.T) {
	const file = "testdata/iperf3_two_connections-v1.srv.pcap"
	const conn = "10.77.0.2:43538-10.77.0.1:5201"
	count := func(args ...string) int {
		return len(parse(t, mustRun(t, append([]string{"-r", file, "-o", "json"}, args...)...)))
	}
	all := parse(t, mustRun(t, "-r", file, "-o", "json", "--type", "all"))
	want := func(keep func(e *event) bool) (n int) {
		for i := range all {
			if keep(&all[i]) {
				n++
			}
		}
		return n
	}
	for _, test := range []struct {
		args []string
		want int
		min  int
	}{
		{nil, want(func(e *event) bool { return e.Type != "roce" }), 20},
		{[]string{"-t", "clc"}, want(func(e *event) bool { return e.Type == "clc" }), 6},
		{[]string{"--type", "LLC,cdc"}, want(func(e *event) bool { return e.Type == "llc" || e.Type == "cdc" }), 14},
		{[]string{"--type", "roce"}, want(func(e *event) bool { return e.Type == "roce" }), 30},
		{[]string{"--conn", "10.77.0.2:43538"}, want(func(e *event) bool { return e.Connection == conn }), 8},
		{[]string{"--conn", "[::ffff:10.77.0.1]:5201"}, want(func(e *event) bool { return e.Type == "clc" || e.Connection != "" }), 12},
		{[]string{"--peer", "fe80::5054:ff:fe00:2"}, want(func(e *event) bool { return e.Type == "llc" || e.Type == "cdc" }), 14},
		{[]string{"--peer", "10.77.0.2"}, want(func(e *event) bool { return e.Connection != "" }), 12},
		{[]string{"--qpn", "17"}, want(func(e *event) bool { return e.Type == "llc" || e.Type == "cdc" || e.Fields["qpn"] == "0x000011" }), 14},
		{[]string{"--qpn", "0x11", "-t", "all"}, want(func(e *event) bool { return e.Type != "clc" || e.Fields["qpn"] == "0x000011" }), 40},
	} {
		if got := count(test.args...); got != test.want || got < test.min {
			t.Errorf("%q: %d events, want %d, at least %d", test.args, got, test.want, test.min)
		}
	}
	// What is selected by nothing is no error.
	out, errOut, err := run(t, nil, "-r", file, "--peer", "192.0.2.1")
	if want := "smcr: no events of the types clc, llc, cdc in 60 packets of " + file + "\n"; err != nil || out != "" || errOut != want {
		t.Errorf("%q, %q, %v", out, errOut, err)
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	const file = "testdata/h4_client_no_ueid.cli.pcap"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "own.pcap")
	if err := os.WriteFile(own, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, text string }{
		{"-r x --type cls", `unknown type "cls": choose one or more of clc, llc, cdc, roce, all`},
		{"-r x --conn 10.1.0.2", `invalid connection "10.1.0.2": must be ADDRESS:PORT, such as 10.1.0.2:8080 or [fd00::2]:8080`},
		{"-r x --peer host", `invalid peer "host": must be an IP address`},
		{"-r x --qpn 0x1000000", `invalid queue pair number "0x1000000": must be a number up to 0xffffff, such as 17 or 0x11`},
		{"-r " + own + " --pcapng " + own, own + " is the file that is read: write the packets to another one"},
		{"-r x more", `unexpected argument "more"`},
	} {
		if _, _, err := run(t, nil, strings.Fields(test.args)...); !errors.Is(err, cmdutil.ErrUsage) || err.Error() != test.text {
			t.Errorf("%s: %v", test.args, err)
		}
	}
	if got, err := os.ReadFile(own); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the file that is read has changed: %v", err)
	}
	if _, _, err := run(t, nil, "-r", filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}

// TestBadFiles reads files that are damaged, and checks that what is in front of the damage is
// shown.
func TestBadFiles(t *testing.T) {
	b, err := os.ReadFile("testdata/a_first_contact_echo.cli.pcap")
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	if _, err := zw.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	whole := mustRun(t, "-r", "testdata/a_first_contact_echo.cli.pcap")
	long := bytes.Clone(b)
	copy(long[24+8:], []byte{0xff, 0xff, 0xff, 0x7f}) // the length of the first packet
	for _, test := range []struct {
		name string
		in   []byte
		is   error
		text string
		same bool
	}{
		{"gzip", z.Bytes(), nil, "", true},
		{"cut", b[:len(b)-3], capture.ErrTruncated, "standard input ends in the middle of a packet; all packets before it were shown", true},
		{"empty", nil, capture.ErrFormat, "standard input is not a capture file in pcap or pcapng format, or it is damaged: it has fewer than 4 bytes", false},
		{"text", []byte("GET / HTTP/1.0\r\nHost: example.com\r\n\r\n"), capture.ErrFormat, "standard input is not a capture file", false},
		{"length", long, capture.ErrFormat, "standard input is not a capture file in pcap or pcapng format, or it is damaged: packet 1", false},
	} {
		out, _, err := run(t, test.in, "-r", "-")
		if !errors.Is(err, test.is) || err != nil && !strings.HasPrefix(err.Error(), test.text) {
			t.Errorf("%s: %v", test.name, err)
		}
		if (out == whole) != test.same || !test.same && out != "" {
			t.Errorf("%s: %d bytes, want %d", test.name, len(out), len(whole))
		}
	}
}

// TestExtract writes selected packets to a file, and reads this file.
func TestExtract(t *testing.T) {
	const file = "testdata/iperf3_two_connections-v1.srv.pcap"
	to := filepath.Join(t.TempDir(), "out.pcapng")
	want := parse(t, mustRun(t, "-r", file, "--type", "clc,llc", "-o", "json", "--pcapng", to))
	got := parse(t, mustRun(t, "-r", to, "-o", "json"))
	for i := range got {
		want[i].Frame = i + 1
	}
	if d := cmp.Diff(want, got); d != "" || len(got) < 10 {
		t.Error(d)
	}
	if fi, err := os.Stat(to); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	// To standard output, without text.
	out := mustRun(t, "-r", file, "--type", "clc,llc", "--pcapng", "-")
	b, err := os.ReadFile(to)
	if err != nil || out != string(b) {
		t.Errorf("%d bytes on standard output, %d in the file, %v", len(out), len(b), err)
	}
}
