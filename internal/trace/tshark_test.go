// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/testkind"
)

// tshark runs tshark on a file, and returns the values of the fields of each packet that the
// filter selects.
func tshark(t *testing.T, file, filter string, fields ...string) (rows [][]string) {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
			t.Fatal("needs tshark: run scripts/setup-test-tools")
		}
		t.Skip("needs tshark: run scripts/setup-test-tools")
	}
	// The ports of the captures belong to other protocols, so heuristics come first. The
	// dissector for RPC over RDMA takes some LLC messages of version 2 for its own.
	args := []string{
		"-n", "-r", file, "-o", "tcp.try_heuristic_first:TRUE", "--disable-protocol", "rpcordma",
		"-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE",
		"-Y", filter, "-T", "fields", "-E", "separator=/t", "-E", "aggregator=,",
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, &stderr)
	}
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	return rows
}

var (
	clcNumbers = map[string]string{"PROPOSAL": "1", "ACCEPT": "2", "CONFIRM": "3", "DECLINE": "4"}
	llcNumbers = map[string]string{
		"CONFIRM LINK": "0x01", "ADD LINK": "0x02", "ADD LINK CONTINUATION": "0x03", "DELETE LINK": "0x04",
		"CONFIRM RKEY": "0x06", "TEST LINK": "0x07", "CONFIRM RKEY CONTINUATION": "0x08", "DELETE RKEY": "0x09",
	}
)

// TestTshark compares all events of the captures with what tshark finds: the same messages
// and packets in the same order.
func TestTshark(t *testing.T) {
	testkind.System(t)
	files, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	if testing.Short() {
		files = []string{"testdata/two-rnics-v1.eth0.pcap"} // all types of events
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var want []string
			for _, r := range tshark(t, file, "smc || infiniband", "frame.number", "smc.clc_msg", "infiniband.bth.psn",
				"infiniband.bth.destqp", "infiniband.aeth.msn", "infiniband.reth.dmalen", "smc.llc_msg", "smc.rmbe.ctrl.seqno", "smc.rmbe.ctrl.alert.token") {
				number := r[0]
				if r[1] != "" {
					for clc := range strings.SplitSeq(r[1], ",") {
						want = append(want, number+" clc "+clc)
					}
					continue
				}
				want = append(want, strings.TrimRight(strings.Join([]string{number, "roce", r[2], r[3], r[4], r[5]}, " "), " "))
				switch r[6] {
				case "":
				case "0xfe":
					want = append(want, strings.Join([]string{number, "cdc", r[7], r[8]}, " "))
				default:
					want = append(want, number+" llc "+r[6])
				}
			}
			var got []string
			v2 := 0
			for _, e := range parse(t, mustRun(t, "-r", file, "--type", "all", "-o", "json")) {
				if e.Fault != "" {
					t.Errorf("frame %d: %s", e.Frame, e.Fault)
				}
				switch e.Type {
				case "clc":
					got = append(got, fmt.Sprint(e.Frame, " clc ", clcNumbers[e.Message]))
				case "roce":
					psn, err := strconv.ParseUint(e.Fields["psn"].(string), 0, 32)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, strings.TrimRight(fmt.Sprint(e.Frame, " roce ", psn, " ", e.DestQPN, " ", number(e.Fields["msn"]), " ", number(e.Fields["dma_length"])), " "))
				case "cdc":
					got = append(got, fmt.Sprintf("%d cdc 0x%04x %s", e.Frame, int(e.Fields["seq"].(float64)), e.Fields["token"]))
				case "llc":
					if e.Fields["layout"] != "version 1" {
						v2++ // tshark 4.0 does not know these messages
						continue
					}
					got = append(got, fmt.Sprint(e.Frame, " llc ", llcNumbers[e.Message]))
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("tshark (-), smcr (+):\n%s", d)
			}
			if strings.Contains(file, "a_first") && v2 != 8 {
				t.Errorf("%d LLC messages of version 2", v2)
			}
		})
	}
}

// number is the text of a number in JSON, and "" for none.
func number(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return ""
}
