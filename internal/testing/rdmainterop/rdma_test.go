// SPDX-License-Identifier: Apache-2.0

package rdmainterop

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// programs are the tests of perftest, with their names on both sides.
var programs = []struct{ tool, ours string }{
	{"ib_write_bw", "write-bw"},
	{"ib_send_bw", "send-bw"},
	{"ib_read_bw", "read-bw"},
	{"ib_write_lat", "write-lat"},
	{"ib_send_lat", "send-lat"},
}

// TestPrograms runs each program of ibverbs-utils and perftest on the kernel's rxe with
// its counterpart of smcr verbs, in both roles, with sizes from 1 byte to 8 MiB and all
// path MTUs.
func TestPrograms(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	t.Run("pingpong", func(t *testing.T) {
		for _, c := range []struct{ size, n, mtu int }{
			{1, 20, 1024}, {4096, 20, 256}, {4097, 20, 512}, {65536, 10, 1024}, {1 << 20, 5, 2048}, {8 << 20, 3, 4096},
		} {
			b.pingPongs(t, c.size, c.n, c.mtu)
		}
	})
	// The programs poll without a pause. In an emulated machine, this delays the
	// acknowledgements of the kernel. A longer timeout (-u) avoids retransmissions.
	t.Run("one byte", func(t *testing.T) {
		for _, p := range programs {
			b.perf(t, p.tool, p.ours, 20, "-s", "1", "-u", "18")
		}
	})
	t.Run("all sizes", func(t *testing.T) {
		for _, p := range programs[:3] {
			b.perf(t, p.tool, p.ours, 5, "-a", "-u", "18")
		}
		// In an emulated machine, 8 MiB in both directions takes too long, so only one of the
		// two tests uses it.
		for i, size := range []string{"262144", "8388608"} {
			b.perf(t, programs[3+i].tool, programs[3+i].ours, 5, "-s", size, "-u", "18")
		}
	})
	t.Run("path MTU", func(t *testing.T) {
		for _, p := range programs[:3] {
			b.perf(t, p.tool, p.ours, 5, "-s", "500000", "-m", "256", "-u", "18")
		}
	})
}

// TestBadNetwork is TestPrograms on a network that loses, delays and reorders packets.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, n := range []struct {
		name string
		args []string
		size int
	}{
		{"loss", []string{"loss", "1%"}, 1 << 20},
		// After a gap, RoCE sends everything again: a quarter of the size takes as long.
		{"reordering", []string{"delay", "2ms", "reorder", "75%", "50%"}, 1 << 18},
	} {
		t.Run(n.name, func(t *testing.T) {
			b.netem(t, n.args...)
			b.lossy = true
			b.pingPongs(t, n.size, 5, 1024)
			for _, p := range programs {
				b.perf(t, p.tool, p.ours, 5, "-s", fmt.Sprint(n.size))
			}
		})
	}
}

// pingPongs sends messages in both roles. Both sides check their content.
func (b *bed) pingPongs(t *testing.T, size, n, mtu int) {
	t.Helper()
	args := []string{"-c", "-s", fmt.Sprint(size), "-n", fmt.Sprint(n), "-m", fmt.Sprint(mtu)}
	tool := b.tool(append([]string{"ibv_rc_pingpong", "-e", "-g", "1"}, args...)...)
	ours := b.ours(append([]string{"pingpong"}, args...)...)
	check := func(fromTool, fromOurs string) {
		t.Helper()
		if strings.Contains(fromTool, "invalid data") || !strings.Contains(fromTool, fmt.Sprintf("%d iters in", n)) {
			t.Errorf("the kernel's side:\n%s", fromTool)
		}
		var r []struct{ Checked, MTU int }
		if err := json.Unmarshal([]byte(fromOurs), &r); err != nil || len(r) != 1 || r[0].Checked != n || r[0].MTU != mtu {
			t.Errorf("our side: %v: %s", err, fromOurs)
		}
	}
	check(b.pair(t, tool, ours))
	fromOurs, fromTool := b.pair(t, ours, tool)
	check(fromTool, fromOurs)
}

// perf measures in both roles.
func (b *bed) perf(t *testing.T, tool, ours string, n int, args ...string) {
	t.Helper()
	args = append(args, "-n", fmt.Sprint(n))
	theirs := b.tool(append([]string{tool, "-F", "-x", "1"}, args...)...)
	mine := b.ours(append([]string{"perf", ours}, args...)...)
	want := 1
	if args[0] == "-a" {
		want = 23
	}
	_, fromOurs := b.pair(t, theirs, mine)
	checkRows(t, fromOurs, want, n)
	fromOurs, fromTool := b.pair(t, mine, theirs)
	rows := toolRows(fromTool)
	if len(rows) != want || rows[len(rows)-1] != lastSize(args) {
		t.Errorf("%s wrote %d rows, want %d, the last of %d bytes:\n%s", tool, len(rows), want, lastSize(args), fromTool)
	}
	if ours == "write-bw" || ours == "read-bw" {
		want = 1 // the client reports only the last one
	}
	checkRows(t, fromOurs, want, n)
}

func lastSize(args []string) int {
	if args[0] == "-a" {
		return 8 << 20
	}
	n, _ := strconv.Atoi(args[1])
	return n
}

var rowOfTool = regexp.MustCompile(`(?m)^ *(\d+) +\d+ +\d+\.\d+`)

// toolRows returns the sizes in the table of a perftest program.
func toolRows(s string) (sizes []int) {
	for _, m := range rowOfTool.FindAllStringSubmatch(s, -1) {
		n, _ := strconv.Atoi(m[1])
		sizes = append(sizes, n)
	}
	return sizes
}

// checkRows checks the table of smcr verbs: the rows have the right number of iterations,
// and their results are not zero.
func checkRows(t *testing.T, text string, want, n int) {
	t.Helper()
	var rows []struct {
		Size, Iterations int
		Average          float64 `json:"average_mib_per_second"`
		Typical          float64 `json:"typical_usec"`
	}
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if len(rows) != want && !(want == 23 && len(rows) == 0) {
		t.Errorf("%d rows, want %d: %s", len(rows), want, text)
	}
	for _, r := range rows {
		if r.Iterations != n || r.Average <= 0 && r.Typical <= 0 {
			t.Errorf("row %+v", r)
		}
	}
}

// TestExchange captures what the programs exchange over TCP in the file that
// SMCR_TEST_PCAP names. The tests of the codecs use these messages.
func TestExchange(t *testing.T) {
	t.Parallel()
	file := os.Getenv("SMCR_TEST_PCAP")
	if file == "" {
		t.Skip("writes a capture of the TCP exchange to the file SMCR_TEST_PCAP")
	}
	b := newBed(t)
	c := b.Command("tcpdump", "-i", "k0", "-U", "-s", "0", "-w", "/run/share/x.pcap", "tcp")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b.must(t, "sleep", "3")
	b.pingPongs(t, 4096, 3, 1024)
	b.perf(t, "ib_write_bw", "write-bw", 5, "-s", "65536")
	b.must(t, "sleep", "1")
	data, err := os.ReadFile(b.Share() + "/x.pcap")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
