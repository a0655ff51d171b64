// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/userstack/wire"
)

// allowedMarks are the remarks of tshark 4.0, of any severity but chat, on frames between two
// Linux 6.12 kernels, with TCP or the last protocol of the frame. They were recorded by
// the tshark command of tsharkFrames from all captures that the README of
// userstack/wire/testdata names, for both senders. Numbers of repetitions are removed.
var allowedMarks = map[string]bool{
	"tcp: This frame initiates the connection closing":                  true,
	"tcp: This frame undergoes the connection closing":                  true,
	"tcp: This frame is a (suspected) retransmission":                   true,
	"tcp: D-SACK Sequence":                                              true,
	"tcp: ACKed segment that wasn't captured (common at capture start)": true,
	`infiniband: "Time To Live" only 1`:                                 true,
	`data: "Time To Live" only 1`:                                       true,
	`smc: "Time To Live" only 1`:                                        true,
	"infiniband: Illegal checksum value (0)":                            true,
	"data: Illegal checksum value (0)":                                  true,
	"smc: Illegal checksum value (0)":                                   true,

	// The TCP of these frames is that of the kernel of this host. It sends segments and
	// acknowledgements again if a busy machine lets the guest answer late.
	"tcp: Duplicate ACK": true,
	"tcp: This frame is a (suspected) spurious retransmission": true,
	"tcp: This frame is a (suspected) fast retransmission":     true,
	"tcp: This frame is a (suspected) out-of-order segment":    true,

	// This does not occur between Linux kernels: they end the TCP connection of an
	// aborted SMC-R connection by FIN. RFC 7609, section 4.8.2, requires a reset.
	"tcp: Connection reset (RST)": true,
}

// chat is the severity of remarks on what belongs to any connection: SYN, FIN, an update of the
// window. All others are of something unusual.
const chat = "2097152"

// TestFrames decodes the frames that the stack sends to a kernel with tshark.
func TestFrames(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("needs tshark (scripts/setup-test-tools): %v", err)
	}
	const devices = 2
	kernel, user := newBedOf(t, setup{devices: devices})
	for i := range devices {
		// Otherwise several datagrams are captured as one, in the form for a device that
		// segments them itself.
		user.run(t, "ethtool", "-K", fmt.Sprintf("u%d", i), "tx-udp-segmentation", "off")
	}
	stop := captureAll(t, kernel, devices)
	for i, p := range [][2]*side{{kernel, user}, {user, kernel}} {
		client, server := p[0], p[1]
		at := netip.AddrPortFrom(netip.MustParseAddr(server.addr), uint16(5600+i))
		end := server.start(t, "listening", "serve", at.String())
		c := count(t, client, server)
		for _, size := range []int{1, 1000, 100001} {
			client.connect(t, "echo", at, "-n", "2", "-bytes", fmt.Sprint(size))
		}
		client.connect(t, "echo", at, "-n", "10", "-parallel", "-bytes", "20000")
		client.connect(t, "reset", at, "-n", "2")
		c.want(t, 6+10+2)
		end()
		stop := server.daemon(t, 6379, "redis-server", "--bind", server.addr, "--port", "6379", "--save", "", "--protected-mode", "no", "--dir", "/tmp")
		if got := client.exec(t, "redis-cli", "-h", server.addr, "set", "key", "value").Stdout; strings.TrimSpace(got) != "OK" {
			t.Errorf("set: %q", got)
		}
		stop()
		stop = server.daemon(t, 5201, "iperf3", "-s", "-1", "-B", server.addr)
		client.exec(t, "iperf3", "-c", server.addr, "-n", "1M", "-P", "2")
		stop()
	}
	// A link ends and another one is added.
	user.run(t, "ip", "link", "set", "u1", "down")
	eventually(t, "the group has one link", func() bool {
		for _, g := range query[linkGroup](t, user, "linkgroup", "list") {
			if g.Type == "SYM" {
				return false
			}
		}
		return true
	})
	// Without a common enterprise ID there is a DECLINE.
	user.smcrun(t, "ueid", "flush")
	user.smcrun(t, "ueid", "add", "ANOTHER")
	for i, p := range [][2]*side{{kernel, user}, {user, kernel}} {
		at := netip.AddrPortFrom(netip.MustParseAddr(p[1].addr), uint16(5610+i))
		end := p[1].start(t, "listening", "serve", at.String())
		p[0].connect(t, "echo", at)
		end()
	}
	user.stop(t, user.stack) // sends DELETE LINK for the groups

	clc, messages, frames := map[string]int{}, map[string]int{}, 0
	for _, file := range stop() {
		for _, f := range tsharkFrames(t, file, devices) {
			frames++
			for _, m := range f.clc {
				clc[m]++
			}
			for _, mark := range f.marks {
				if !allowedMarks[mark] {
					t.Errorf("%s frame %s: tshark says %q", filepath.Base(file), f.number, mark)
				}
			}
			if f.message != nil {
				messages[parse(t, f)]++
			}
		}
	}
	t.Logf("%d frames of the stack; CLC %v; LLC and CDC %v", frames, clc, messages)
	// RFC 7609, appendix A.2.1: PROPOSAL, ACCEPT, CONFIRM, DECLINE.
	for _, m := range []string{"1", "2", "3", "4"} {
		if clc[m] == 0 {
			t.Errorf("tshark sees no CLC message of type %s", m)
		}
	}
	for _, m := range []string{"CDC", "CONFIRM LINK", "ADD LINK", "CONFIRM RKEY", "DELETE RKEY", "DELETE LINK"} {
		if messages[m] == 0 {
			t.Errorf("no %s: %v", m, messages)
		}
	}
}

// captureAll captures whole frames on the netdevs of the kernel. stop ends this and
// returns the files.
func captureAll(t *testing.T, kernel *side, devices int) (stop func() []string) {
	t.Helper()
	commands := make([]*guest.Cmd, devices)
	file := func(i int) string { return fmt.Sprintf("k%d.pcap", i) }
	for i := range commands {
		// The buffer, in KiB, is for frames that arrive while tcpdump does not run.
		c := kernel.Command("sh", "-c", fmt.Sprintf("exec tcpdump -i k%d -s 0 -B 65536 -Z root -w /tmp/%s 2>&1", i, file(i)))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		commands[i] = c
		if err := c.WaitStdout(t.Context(), "listening on"); err != nil {
			t.Fatal(err)
		}
	}
	return func() (files []string) {
		time.Sleep(time.Second) // Real time: frames are on their way to tcpdump, and nothing says how many.
		for i, c := range commands {
			if r := kernel.stop(t, c); !strings.Contains(r.Stdout, "\n0 packets dropped by kernel") {
				t.Errorf("tcpdump: %s", r.Stdout)
			}
			kernel.run(t, "mv", "/tmp/"+file(i), guest.SharePath)
			files = append(files, filepath.Join(kernel.Share(), file(i)))
		}
		return files
	}
}

// A dissected is a frame of the stack, decoded by tshark.
type dissected struct {
	number  string
	clc     []string // types of the CLC messages
	marks   []string
	message []byte // the message in a SEND, or nil
}

// tsharkFrames returns the frames of the stack in a capture.
func tsharkFrames(t *testing.T, file string, devices int) []dissected {
	t.Helper()
	var own []string
	for i := range devices {
		own = append(own, addrOf(userAddr, i))
	}
	// The ports of the tests belong to other protocols, so heuristics come first. The
	// dissector for RPC over RDMA is disabled: tshark 4.0 takes some data, and LLC of
	// version 2, for it.
	cmd := exec.CommandContext(t.Context(), "tshark", "-n", "-r", file, "-o", "tcp.try_heuristic_first:TRUE", "--disable-protocol", "rpcordma",
		"-Y", "ip.src in {"+strings.Join(own, ",")+"} && (tcp || infiniband)", "-T", "fields", "-E", "separator=/t", "-E", "aggregator=|",
		"-e", "frame.number", "-e", "frame.protocols", "-e", "smc.clc_msg", "-e", "_ws.expert.severity", "-e", "_ws.expert.message", "-e", "infiniband.bth.opcode", "-e", "udp.payload")
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &stderr)
	}
	var frames []dissected
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 7 {
			t.Fatalf("tshark: %q", line)
		}
		x := dissected{number: f[0]}
		if f[2] != "" {
			x.clc = strings.Split(f[2], "|")
		}
		x.marks = marks(f[1], f[3], f[4])
		const sendOnly, bth, icrc = "4", 12, 4 // InfiniBand specification, 9.2 and 9.4.1
		if f[5] == sendOnly {
			b, err := hex.DecodeString(strings.ReplaceAll(f[6], ":", ""))
			if err != nil || len(b) < bth+icrc {
				t.Fatalf("tshark: payload %q: %v", f[6], err)
			}
			x.message = b[bth : len(b)-icrc]
		}
		frames = append(frames, x)
	}
	return frames
}

// marks returns the remarks on a frame that are not chat, with the protocol of the frame. The arguments are
// lists of tshark: its protocols, and the severity and the text of each remark.
func marks(protocols, severities, texts string) (list []string) {
	protocol := protocols[strings.LastIndex(protocols, ":")+1:]
	if strings.Contains(protocols, ":tcp") {
		protocol = "tcp" // it carries CLC, or data after a DECLINE
	}
	severity, text := strings.Split(severities, "|"), strings.Split(texts, "|")
	for i, m := range text {
		// If a text has the separator, nothing says which severity is whose.
		if m == "" || len(severity) == len(text) && severity[i] == chat {
			continue
		}
		m, _, _ = strings.Cut(m, " (#")
		list = append(list, protocol+": "+m)
	}
	return list
}

// TestMarks: what tshark says of any connection is no remark, and everything else is one.
func TestMarks(t *testing.T) {
	for _, tt := range []struct {
		protocols, severities, texts string
		want                         []string
	}{
		{"eth:ethertype:ip:tcp", "", "", nil},
		{"eth:ethertype:ip:tcp", "2097152", "TCP window update", nil},
		{"eth:ethertype:ip:tcp:smc", "2097152|4194304", "Connection finish (FIN)|Duplicate ACK (#1)", []string{"tcp: Duplicate ACK"}},
		{"eth:ethertype:ip:udp:infiniband", "6291456", "Illegal checksum value (0)", []string{"infiniband: Illegal checksum value (0)"}},
		{"eth:ethertype:ip:udp:infiniband:smc", "2097152", "one text|in two", []string{"smc: one text", "smc: in two"}},
	} {
		if got := marks(tt.protocols, tt.severities, tt.texts); !slices.Equal(got, tt.want) {
			t.Errorf("%s %s: %q, want %q", tt.severities, tt.texts, got, tt.want)
		}
	}
}

// parse decodes a message with package wire, and returns its name.
func parse(t *testing.T, f dissected) string {
	t.Helper()
	if len(f.message) == 0 || f.message[0] != byte(wire.CDCType) {
		m, err := wire.ParseLLC(f.message)
		if err != nil {
			t.Errorf("frame %s: %x: %v", f.number, f.message, err)
			return "malformed"
		}
		return m.LLCType().String()
	}
	if _, err := wire.ParseCDC(f.message); err != nil {
		t.Errorf("frame %s: %x: %v", f.number, f.message, err)
	}
	return "CDC"
}
