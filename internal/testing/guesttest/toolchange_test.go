// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"smcr/internal/testing/testkind"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testPNET changes the table of pnetids and restores it. The link group has a separate
// copy of the pnetid.
func (x *tools) testPNET() {
	type row struct {
		PNETID string `json:"pnetid"`
		NetDev string `json:"netdev"`
		IBDev  string `json:"ibdev"`
		IBPort int    `json:"ibport"`
	}
	// table checks that smc_pnet prints rows, and that smcr lists the same.
	table := func(rows ...row) {
		x.t.Helper()
		if got := query[row](x.t, x.host, "pnet", "list"); !slices.Equal(got, rows) {
			x.t.Errorf("pnet list: got %v, want %v", got, rows)
		}
		var b strings.Builder
		for _, r := range rows {
			if r.IBDev != "" {
				fmt.Fprintf(&b, "%s n/a %s %d\n", r.PNETID, r.IBDev, r.IBPort)
			} else {
				fmt.Fprintf(&b, "%s %s n/a 255\n", r.PNETID, r.NetDev)
			}
		}
		x.same(printed{out: b.String()}, "smc_pnet")
	}
	net, ib := row{PNETID: "SMC1", NetDev: "eth0"}, row{PNETID: "SMC1", IBDev: "rxe0", IBPort: 1}
	table(net, ib)
	for _, command := range []string{
		"smc_pnet", "smc_pnet -s", "smc_pnet --show", "smc_pnet -s SMC1", "smc_pnet -s NOPE", "smc_pnet SMC1",
		"smc_pnet -a NOIF", "smc_pnet --bad", "smc_pnet -h",
	} {
		p := x.live.of(x.t, command)
		p.err = strings.ReplaceAll(p.err, "SMCTOOLS/", x.dir+"/")
		x.same(p, command)
	}
	for _, command := range []string{
		"smc_pnet -a SMC2 -I eth0", "smc_pnet -a SMC2 -D rxe0 -P 2", "smc_pnet -a IBX -D rxe0 -P 3",
		"smc_pnet -a 12345678901234567 -I eth0", "smc_pnet -d NOPE", "smc_pnet -d BAD-ID",
	} {
		x.asRecorded(x.edit, command)
	}
	x.same(printed{err: "smc_pnet: Object exists\n", status: 1}, "smc_pnet -a SMC1 -I eth0")
	table(net, ib)
	x.asRecorded(x.edit, "smc_pnet -a 1234567890123456 -I lo")
	if got := query[row](x.t, x.host, "pnet", "list"); !slices.Contains(got, row{PNETID: "1234567890123456", NetDev: "lo"}) {
		x.t.Errorf("pnet list: %v", got)
	}
	x.same(printed{}, "smc_pnet -d 1234567890123456")
	table(net, ib)

	x.asRecorded(x.edit, "smc_pnet -f")
	table()
	x.same(printed{}, "smc_pnet -a SMC1 -I eth0")
	table(net)
	x.same(printed{}, "smc_pnet -a SMC1 -D rxe0 -P 1")
	table(net, ib)
	if g := queryOne[linkGroup](x.t, x.host, "linkgroup", "list"); g.ID != x.linkGroup.ID || g.Conns != x.linkGroup.Conns {
		x.t.Errorf("linkgroup list after changes of pnetids: %+v, before %+v", g, x.linkGroup)
	}
	x.same(printed{out: x.live.of(x.t, "smc_chk -i eth0").out}, "smc_chk -i eth0")
	x.asRecorded(x.live, "smc_chk -i nosuch")
}

// testDebug checks that smc_dbg collects what the programs print one by one. Their
// connections are idle.
func (x *tools) testDebug() {
	sections := []struct{ file, commands string }{
		{"version.txt", "smcss -v;smc_dbg -v;smc_pnet -v;smc_rnics -v;smc_chk -v;smcd -v;smcr -v"},
		{"smcss_all.txt", "smcss --all --debug"},
		{"smcss_smcr", "smcss --smcr"},
		{"pnet_table.txt", "smc_pnet --show"},
		{"smcr_links.txt", "smcr -d linkgroup link-show"},
		{"smcd_lgs.txt", "smcd -d linkgroup show"},
		{"smcd_info.txt", "smcd info"},
		{"smcd_stats.txt", "smcd -d stats"},
		{"smcr_stats.txt", "smcr -d stats"},
	}
	var want printed
	files := make(map[string]string)
	for _, s := range sections {
		want.out += "\n"
		for _, command := range strings.Split(s.commands, ";") {
			p := x.prints(strings.Fields(command)...)
			want.out += p.out
			want.err += p.err
			files[s.file] += p.out + p.err
		}
	}
	x.same(want, "smc_dbg")
	x.asRecorded(x.live, "smc_dbg -h")

	got := x.prints("smc_dbg", "-t")
	m := regexp.MustCompile(`^Debug output written to (/tmp/(smc_dbg-\w+)\.tgz)\n$`).FindStringSubmatch(got.out)
	if m == nil || got.status != 0 || got.err != "" {
		x.t.Fatalf("smc_dbg -t: %+v", got)
	}
	defer x.run(x.t, "rm", m[1])
	names := []string{m[2] + "/"}
	for _, s := range sections {
		names = append(names, m[2]+"/"+s.file)
	}
	if diff := cmp.Diff(names, strings.Fields(x.run(x.t, "tar", "-tzf", m[1]))); diff != "" {
		x.t.Errorf("smc_dbg -t: files (-want +got):\n%s", diff)
	}
	for file, text := range files {
		if diff := cmp.Diff(text, x.run(x.t, "tar", "-xzOf", m[1], m[2]+"/"+file)); diff != "" {
			x.t.Errorf("smc_dbg -t: %s (-want +got):\n%s", file, diff)
		}
	}
}

// testCheck makes smc_chk and smcr check connect from a to a server of smc_chk on b.
func testCheck(t *testing.T, a, b *tools) {
	stop := b.start(t, "Server started on port 37373\n", path.Join(b.dir, "smc_chk"), "-S")
	defer stop()
	a, b = a.in(t), b.in(t)
	a.same(printed{out: "Test with target IP " + b.addr + " and port 37373\n" +
		"  Live test (SMC-D and SMC-R)\n     Success, using SMC-R\n\n"}, "smc_chk -C "+b.addr)
	got := a.prints("smc_chk", "-d", "-C", b.addr, "-p", "37373")
	for _, want := range []string{"[DEBUG] Interfaces to check: eth0\n", "\n[DEBUG] Running client: smc_run ", "\n[DEBUG] Client result: SMCR\n     Success, using SMC-R\n\n"} {
		if !strings.Contains(got.out, want) || got.status != 0 {
			t.Errorf("smc_chk -d -C: %+v, want %q", got, want)
		}
	}

	var rows []struct {
		Stack  string `json:"stack"`
		Remote string `json:"remote"`
		OK     bool   `json:"ok"`
		Steps  []struct {
			Name   string `json:"name"`
			Result string `json:"result"`
		} `json:"steps"`
	}
	out := a.run(t, a.smcr, "check", b.addr+":37373", "--backend", "kernel", "-o", "json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 || !rows[0].OK || rows[0].Stack != "kernel" || len(rows[0].Steps) < 5 {
		t.Errorf("smcr check: %v\n%s", err, out)
	}
}

// testRun runs a TCP program with smc_run, as client of the AF_SMC server on b.
func testRun(t *testing.T, a *tools, b *host) {
	a = a.in(t)
	server := netip.MustParseAddrPort(b.addr + ":5001")
	before := activeConnections(t, a.host)
	const rcv, snd = 512 << 10, 256 << 10
	stop := a.start(t, "echoed", path.Join(a.dir, "smc_run"), "-r", "512k", "-t", "256k", a.peer, "connect", "-tcp", server.String())
	var more []connection
	for _, c := range activeConnections(t, a.host) {
		if !slices.ContainsFunc(before, func(d connection) bool { return c.Inode == d.Inode }) {
			more = append(more, c)
		}
	}
	if len(more) != 1 || more[0].Mode != "SMCR" || more[0].Remote != server || more[0].Info == nil || more[0].Info.RMBE != rcv || more[0].Info.Sndbuf != snd {
		t.Errorf("connection list with a program under smc_run: %+v", more)
	} else if out := a.prints("smcss", "-R").out; !strings.Contains(out, fmt.Sprintf(" %07d %v ", more[0].Inode, more[0].Local)) {
		t.Errorf("smcss -R: no %v in\n%s", more[0].Local, out)
	}
	stop()
	testkind.Eventually(t, "the connection of smc_run is gone", func() (any, bool) {
		now := activeConnections(t, a.host)
		return now, len(now) == len(before)
	})

	if got, want := a.prints("smc_run", "-r", "128k", "-t", "1M", "sh", "-c", "echo $SMC_RCVBUF $SMC_SNDBUF $SMC_DEBUG; exit 7"), (printed{out: "131072 1048576 0\n", status: 7}); got != want {
		t.Errorf("smc_run: got %+v, want %+v", got, want)
	}
	for _, command := range []string{"smc_run", "smc_run -r 5x true", "smc_run -h"} {
		a.asRecorded(a.live, command)
	}
	if out := a.run(t, a.smcr, "run", "--mode", "kernel", "--", "sh", "-c", "echo ran"); out != "ran\n" {
		t.Errorf("smcr run: %q", out)
	}
	// smcr lists all RNICs. smc_rnics lists only those of IBM Z.
	type rnic struct {
		IBDev  string `json:"ibdev"`
		NetDev string `json:"netdev"`
		State  string `json:"state"`
		PNETID string `json:"pnetid"`
		ByUser bool   `json:"pnetid_by_user"`
	}
	var list []rnic
	out := a.run(t, a.smcr, "rnics", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0] != (rnic{"rxe0", "eth0", "ACTIVE", "SMC1", true}) {
		t.Errorf("smcr rnics: %v\n%s", err, out)
	}
}

// testFallbackTools checks that smcss and smcr stats show a connection that uses TCP for
// a reason, one of total such connections so far.
func testFallbackTools(x *tools, server netip.AddrPort, reason, short string, total int) {
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^ACTIVE {9}00000 \d{7} .{23} %s +0000 TCP %s$`,
		regexp.QuoteMeta(fmt.Sprintf("%s:%d", server.Addr(), server.Port())), reason))
	for _, options := range [][]string{nil, {"-a"}, {"-d"}} {
		if got := x.prints(append([]string{"smcss"}, options...)...); len(row.FindAllString(got.out, -1)) != 1 {
			x.t.Errorf("smcss %q: no line matches %s:\n%s", options, row, got.out)
		}
	}
	if got := x.prints("smcss", "-R"); strings.Contains(got.out, "TCP") {
		x.t.Errorf("smcss -R shows more than SMC-R:\n%s", got.out)
	}
	c := queryOne[counters](x.t, x.host, "stats", "show")
	for _, command := range []string{"smcr -d stats", "smcd -d stats"} {
		v := &c.SMCR
		if strings.HasPrefix(command, "smcd") {
			v = &c.SMCD
		}
		x.statsText(command, &c, v)
	}
	values := statsValues(x.prints("smcr", "-d", "stats").out)
	if got, want := values["Connections/TCP fallback"], fmt.Sprintf("%d (client %d, server 0)", total, total); got != want || values["Connections/"+short] != "1" {
		x.t.Errorf("smcr -d stats: fallbacks %q, want %q; %s %q, want 1", got, want, short, values["Connections/"+short])
	}
}
