// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// cacheFile is the file in which smcr stats keeps the values of the last reset, for root.
const cacheFile = "/tmp/.smcstats.u0"

// testStats compares the output of smcr stats and smcd stats with that of smcr's own
// command.
func (x *tools) testStats() {
	// A file from before the start of the guest would hide counts.
	x.run(x.t, "rm", "-f", cacheFile)
	defer x.run(x.t, "rm", "-f", cacheFile)
	c := queryOne[counters](x.t, x.host, "stats", "show")
	if c.SMCR.Connections == 0 || c.SMCR.RX.Bytes == 0 || c.SMCD.Connections != 0 {
		x.t.Fatalf("stats show: %+v", c)
	}
	for _, options := range []string{"", "-a ", "-d ", "-ad ", "-dd "} {
		x.statsText("smcr "+options+"stats", &c, &c.SMCR)
		x.statsText("smcd "+options+"stats", &c, &c.SMCD)
	}
	for _, command := range []string{"smcr stats json", "smcr -a stats json"} {
		x.statsJSON(command, "SMCR", &c.SMCR)
	}
	x.statsJSON("smcd stats json", "SMCD", &c.SMCD)
	x.asRecorded(x.live, "smcd stats help")
	x.strict().asRecorded(x.live, "smcr stats bad")

	// A reset shows the values once more. Later counts begin there, for smcr and smcd and
	// for smcr's own command. With -a, counts go on.
	x.statsText("smcr stats reset", &c, &c.SMCR)
	zero := counters{}
	for _, d := range []*direction{&zero.SMCR.RX, &zero.SMCR.TX} {
		d.BufferSizes, d.CallSizes = make([]bucket, len(c.SMCR.RX.BufferSizes)), make([]bucket, len(c.SMCR.RX.CallSizes))
	}
	zero.SMCD = zero.SMCR
	x.statsText("smcr stats", &zero, &zero.SMCR)
	x.statsText("smcd stats", &zero, &zero.SMCD)
	x.statsJSON("smcr stats json", "SMCR", &zero.SMCR)
	x.statsText("smcr -a stats", &c, &c.SMCR)
	x.statsJSON("smcr -a stats json", "SMCR", &c.SMCR)
	if got := queryOne[counters](x.t, x.host, "stats", "show", "--absolute"); !cmp.Equal(got, c) {
		x.t.Errorf("stats show --absolute after smcr stats reset: %s", cmp.Diff(c, got))
	}
	if got := queryOne[counters](x.t, x.host, "stats", "show"); got.SMCR.Connections != 0 || got.SMCR.RX.Bytes != 0 {
		x.t.Errorf("stats show after smcr stats reset: %+v", got)
	}
	if file := x.run(x.t, "cat", cacheFile); !strings.Contains(file, fmt.Sprint(c.SMCR.RX.Bytes)) {
		x.t.Errorf("%s has not what was received:\n%s", cacheFile, file)
	}
}

// statsText runs smcr stats or smcd stats in a form for people.
func (x *tools) statsText(command string, c *counters, v *tech) {
	x.t.Helper()
	recorded := command
	if strings.Contains(command, "-dd ") {
		recorded = strings.Replace(command, "-dd ", "-d ", 1)
	}
	got := x.prints(strings.Fields(command)...)
	if diff := cmp.Diff(shape(x.live.of(x.t, recorded).out), shape(got.out)); diff != "" || got.status != 0 || got.err != "" {
		x.t.Errorf("%s: status %d, %q, form (-smc-tools +smcr):\n%s", command, got.status, got.err, diff)
	}
	details := strings.Contains(got.out, "(client ")
	values := statsValues(got.out)
	// number checks a number and the text after it.
	number := func(key string, n uint64, behind string) {
		x.t.Helper()
		got, ok := values[key]
		if want := strings.TrimSpace(fmt.Sprint(n, " ", behind)); !ok || got != want {
			x.t.Errorf("%s: %s: got %q, want %q", command, key, got, want)
		}
	}
	sum := func(key string, client, server uint64) {
		x.t.Helper()
		behind := ""
		if details {
			behind = fmt.Sprintf("(client %d, server %d)", client, server)
		}
		number("Connections/"+key, client+server, behind)
	}
	f, e := c.Fallbacks, c.Errors
	number("Connections/Total connections handled", v.Connections+e.Client+e.Server+f.Client+f.Server, "")
	sum("SMC connections", v.ClientV1+v.ClientV2, v.ServerV1+v.ServerV2)
	sum("Handshake errors", e.Client, e.Server)
	sum("TCP fallback", f.Client, f.Server)
	requests := 0.0
	if v.Connections > 0 {
		requests = float64(v.RX.Calls+v.TX.Calls) / float64(v.Connections)
	}
	if got, want := values["Connections/Avg requests per SMC conn"], fmt.Sprintf("%.1f", requests); got != want {
		x.t.Errorf("%s: requests per connection: got %s, want %s", command, got, want)
	}
	special := v.Cork + v.NoDelay + v.Sendpage + v.Splice + v.Urgent
	number("Extras/Special socket calls", special, "")
	if details {
		number("Connections/v1", v.ClientV1+v.ServerV1, "")
		number("Connections/v2", v.ClientV2+v.ServerV2, "")
		for name, n := range map[string]uint64{"cork": v.Cork, "nodelay": v.NoDelay, "sendpage": v.Sendpage, "splice": v.Splice, "urgent data": v.Urgent} {
			number("Extras/"+name, n, "")
		}
	}

	for _, side := range []struct {
		name string
		d    *direction
	}{{"RX", &v.RX}, {"TX", &v.TX}} {
		d, at := side.d, side.name+"/"
		number(at+"Total requests", d.Calls, "")
		number(at+"Data transmitted (Bytes)", d.Bytes, "("+abbreviated(d.Bytes)+")")
		number(at+"Buffer usage (Bytes)", d.Buffer, "("+abbreviated(d.Buffer)+")")
		share := func(key string, n uint64) {
			x.t.Helper()
			percent := 0.0
			if d.Calls > 0 {
				percent = float64(n) / float64(d.Calls) * 100
			}
			number(at+key, n, fmt.Sprintf("(%.2f%%)", percent))
		}
		share("Buffer full", d.Buffers.Full)
		if side.name == "TX" {
			share("Buffer full (remote)", d.Buffers.FullPeer)
			share("Buffer too small", d.Buffers.Small)
			share("Buffer too small (remote)", d.Buffers.SmallPeer)
		}
		if details {
			number(at+"Buffer downgrades", d.Buffers.Downgrade, "")
			number(at+"Buffer reuses", d.Buffers.Reuse, "")
		}
		for _, row := range []struct {
			name string
			all  []bucket
		}{{"Bufs", d.BufferSizes}, {"Reqs", d.CallSizes}} {
			// The last of the eight columns is for everything above 512 KiB.
			var want []string
			for i := range 8 {
				n := row.all[i].Count
				if i == 7 {
					n += row.all[8].Count
				}
				want = append(want, abbreviated(n))
			}
			if got := strings.Fields(values[at+row.name]); !slices.Equal(got, want) {
				x.t.Errorf("%s: %s%s: got %v, want %v", command, at, row.name, got, want)
			}
		}
	}
}

// abbreviated returns a number in the form of smc-tools: as it is below 1000, otherwise
// with four digits and a decimal unit.
func abbreviated(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10)
	}
	v, unit := float64(n), -1
	for v >= 1000 {
		v, unit = v/1000, unit+1
	}
	digits := 3 // after the decimal point
	for limit := 10.0; v >= limit; limit *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + "KMGTP"[unit:unit+1]
}

// statsRow matches a name and the text after it.
var statsRow = regexp.MustCompile(`^ +(\S+(?: \S+)*) {2,}(\S.*)$`)

// statsValues returns the values in the text of statistics. A key is the section
// (Connections, RX, TX or Extras), a slash and the name of the row.
func statsValues(text string) map[string]string {
	values := make(map[string]string)
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line != "" && line[0] != ' ' {
			section = strings.Fields(line)[0]
			if section == "SMC-R" || section == "SMC-D" {
				section = "Connections"
			}
		} else if m := statsRow.FindStringSubmatch(line); m != nil {
			values[section+"/"+m[1]] = m[2]
		}
	}
	return values
}

// statsJSON compares smcr stats json or smcd stats json.
func (x *tools) statsJSON(command, name string, v *tech) {
	x.t.Helper()
	got := x.prints(strings.Fields(command)...)
	keys := func(text string) []string { return regexp.MustCompile(`"\w+"`).FindAllString(text, -1) }
	if diff := cmp.Diff(keys(x.live.of(x.t, command).out), keys(got.out)); diff != "" {
		x.t.Errorf("%s: keys (-smc-tools +smcr):\n%s", command, diff)
	}
	var all map[string]map[string]uint64
	if err := json.Unmarshal([]byte(got.out), &all); err != nil {
		x.t.Fatalf("%s: %v\n%s", command, err, got.out)
	}
	want := map[string]uint64{
		"SMC_CLNT_V1_SUCC_CNT": v.ClientV1, "SMC_CLNT_V2_SUCC_CNT": v.ClientV2,
		"SMC_SRV_V1_SUCC_CNT": v.ServerV1, "SMC_SRV_V2_SUCC_CNT": v.ServerV2,
		"SMC_SENDPAGE_CNT": v.Sendpage, "SMC_URG_DATA_CNT": v.Urgent, "SMC_SPLICE_CNT": v.Splice,
		"SMC_CORK_CNT": v.Cork, "SMC_NDLY_CNT": v.NoDelay,
	}
	sizes := []string{"8K", "16K", "32K", "64K", "128K", "256K", "512K", "1024K", "G_1024K"}
	for side, d := range map[string]*direction{"RX": &v.RX, "TX": &v.TX} {
		want["SMC_"+side+"_BYTES"], want["SMC_"+side+"_CNT"], want["SMC_"+side+"_RMB_USAGE"] = d.Bytes, d.Calls, d.Buffer
		for i, size := range sizes {
			want["SMC_INT_"+side+"_BUF_"+size] = d.BufferSizes[i].Count
			want["SMC_USR_"+side+"_BUF_"+size] = d.CallSizes[i].Count
		}
		b := d.Buffers
		for event, n := range map[string]uint64{
			"SIZE_SM_PEER": b.SmallPeer, "SIZE_SM": b.Small, "FULL_PEER": b.FullPeer, "FULL": b.Full,
			"REUSE": b.Reuse, "ALLOC": b.Alloc, "DGRADE": b.Downgrade,
		} {
			want["SMC_INT_"+side+"_BUF_"+event+"_CNT"] = n
		}
	}
	if diff := cmp.Diff(map[string]map[string]uint64{name: want}, all); diff != "" {
		x.t.Errorf("%s (-stats show +%s):\n%s", command, command, diff)
	}
}
