// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testTools runs the program by every name of smc-tools on both hosts while their
// connections are open. The state must be that of smcr's own commands, in the recorded
// form of smc-tools.
func testTools(t *testing.T, a, b *host) {
	// Each guest has one processor.
	t.Run("Lists", func(t *testing.T) {
		for _, h := range []*host{a, b} {
			t.Run(h.Name(), func(t *testing.T) {
				t.Parallel()
				x := newTools(t, h)
				x.linkGroup, x.link = queryOne[linkGroup](t, h, "linkgroup", "list"), queryOne[link](t, h, "link", "list")
				t.Run("Info", func(t *testing.T) { x.in(t).testInfo() })
				t.Run("Device", func(t *testing.T) { x.in(t).testDevice() })
				t.Run("LinkGroup", func(t *testing.T) { x.in(t).testLinkGroup() })
				t.Run("EID", func(t *testing.T) { x.in(t).testEID() })
				t.Run("Sockets", func(t *testing.T) { x.in(t).testSockets() })
				t.Run("Stats", func(t *testing.T) { x.in(t).testStats() })
				t.Run("Debug", func(t *testing.T) { x.in(t).testDebug() })
				t.Run("PNET", func(t *testing.T) { x.in(t).testPNET() })
			})
		}
	})
	t.Run("Check", func(t *testing.T) { testCheck(t, newTools(t, a), newTools(t, b)) })
	t.Run("Run", func(t *testing.T) { testRun(t, newTools(t, a), b) })
}

// in returns x for a subtest.
func (x *tools) in(t *testing.T) *tools {
	y := *x
	y.t = t
	return &y
}

func (x *tools) testInfo() {
	i := queryOne[info](x.t, x.host, "info")
	values := []string{
		fmt.Sprintf("%-32s", "guest"), fmt.Sprintf("%-32s", i.Host),
		"2.1", fmt.Sprintf("%d.%d", i.Version, i.Release),
	}
	for _, command := range []string{"smcr info", "smcr info show", "smcd info", "smcd info show"} {
		x.asRecorded(x.live, command, values...)
	}
	for _, command := range []string{"smcr -v", "smcd -v", "smcss -v", "smc_pnet -v", "smc_chk -v", "smc_rnics -v", "smc_dbg -v", "smc_run -v", "smcd help"} {
		x.asRecorded(x.live, command)
	}
	x.strict().asRecorded(x.live, "smcr info bad")
}

// strict returns x with SMCR_COMPAT=strict, for command lines that otherwise have another
// meaning for smcr.
func (x *tools) strict() *tools {
	y := *x
	y.env = append(slices.Clone(x.env), "SMCR_COMPAT=strict")
	return &y
}

func (x *tools) testDevice() {
	d := queryOne[device](x.t, x.host, "device", "list")
	if len(d.Ports) != 1 || !d.Ports[0].ByUser || d.Ports[0].State != "ACTIVE" || d.PCI != nil {
		x.t.Fatalf("device list: %+v", d)
	}
	p := d.Ports[0]
	critical := map[bool]string{true: "Yes", false: " No"}[d.Critical]
	values := []string{
		"eth0            rxe0    ", fmt.Sprintf("%-15s %-8s", p.NetDev, d.IBDev),
		" Yes", " " + critical,
		"1  *SMC1            ", fmt.Sprintf("%d  *%-16s", p.Links, p.PNETID),
	}
	for _, command := range []string{"smcr device", "smcr device show", "smcr device ibdev rxe0", "smcr device netdev eth0"} {
		x.asRecorded(x.live, command, values...)
	}
	// For a device without a PCI function, smc-tools printed a FID from memory that it
	// had not initialized.
	got := x.prints("smcr", "-d", "device")
	want := x.live.of(x.t, "smcr -d device")
	head, row, _ := strings.Cut(want.out, "\n")
	const fid = len("eth0            rxe0        1    ACTIVE  0              Yes   ")
	row = row[:fid] + "0000" + row[fid+len("7f21"):]
	if want := head + "\n" + strings.NewReplacer(values...).Replace(row); got.out != want || got.status != 0 {
		x.t.Errorf("smcr -d device: %s", cmp.Diff(want, got.out))
	}
	for _, command := range []string{"smcr device ibdev nope", "smcd device", "smcd -d device", "smc_rnics"} {
		x.asRecorded(x.live, command)
	}
	x.strict().asRecorded(x.live, "smcr device bad")
}

func (x *tools) testLinkGroup() {
	g, l := x.linkGroup, x.link
	if g.V2 == nil || g.V2R == nil || !g.V2R.Direct || g.VLAN != 0 || l.LinkGroup != g.ID || l.Type != g.Type {
		x.t.Fatalf("%+v, %+v", g, l)
	}
	// There is one row, also if it is selected by its identifier, which may be
	// abbreviated.
	row := []string{"00000100 SERV     SINGLE  ", fmt.Sprintf("%s %-8s %-8s", g.ID, g.Role, g.Type)}
	group := append(slices.Clone(row), "      3  SMC1             ", fmt.Sprintf("%7d  %-16s ", g.Conns, g.PNETID))
	for _, command := range []string{"smcr linkgroup", "smcr linkgroup show", "smcr linkgroup all", "smcr lin"} {
		x.asRecorded(x.live, command, group...)
	}
	p := x.live.of(x.t, "smcr linkgroup")
	p.out = strings.NewReplacer(group...).Replace(p.out)
	x.same(p, "smcr linkgroup show "+g.ID)
	p.out, _, _ = strings.Cut(p.out, "\n")
	p.out += "\n"
	x.same(p, "smcr linkgroup show ffffff00") // there is no such group

	details := []string{
		"LG-ID    : 00000100", "LG-ID    : " + g.ID,
		"LG-Role  : SERV", "LG-Role  : " + g.Role,
		"PNET-ID  : SMC1", "PNET-ID  : " + g.PNETID,
		"Version  : 2", fmt.Sprint("Version  : ", g.Version),
		"Peer-Rel : 1", fmt.Sprint("Peer-Rel : ", g.V2.Release),
		"Peer-Host: guest", "Peer-Host: " + g.V2.PeerHost,
		"Peer-OS  : LINUX", "Peer-OS  : " + g.V2.OS,
		"EID      : SMCV2-EXAMPLE-UEID              ", fmt.Sprintf("EID      : %-32s", g.V2.EID),
		"#Conns   : 3", fmt.Sprint("#Conns   : ", g.Conns),
		"Sndbuf   : 196608 B", fmt.Sprintf("Sndbuf   : %d B", g.Sndbuf),
		"RMB      : 196608 B", fmt.Sprintf("RMB      : %d B", g.RMB),
	}
	for _, command := range []string{"smcr -d linkgroup", "smcr -d linkgroup show", "smcr -dd linkgroup"} {
		x.asRecorded(x.live, command, details...)
	}

	links := append(slices.Clone(row),
		"eth0            LINK_ACTIVE     ", fmt.Sprintf("%-15s %-15s ", l.NetDev, "LINK_"+l.State),
		"     3  ", fmt.Sprintf("%6d  ", l.Conns))
	for _, command := range []string{
		"smcr linkgroup link-show", "smcr linkgroup link-show all", "smcr linkgroup link-show ibdev rxe0",
		"smcr linkgroup link-show netdev eth0",
	} {
		x.asRecorded(x.live, command, links...)
	}
	links = append(links, "00000101  00000101  rxe0         1  ", fmt.Sprintf("%s  %s  %-8s  %4d  ", l.UID, l.PeerUID, l.IBDev, l.IBPort))
	x.asRecorded(x.live, "smcr -d linkgroup link-show", links...)
	gid, peer := recordedGID+"1", recordedGID+"2"
	x.asRecorded(x.live, "smcr -dd linkgroup link-show", append(links, gid, l.GID, peer, l.PeerGID)...)
	for _, command := range []string{
		"smcr linkgroup link-show ibdev nope", "smcr linkgroup help",
		"smcd linkgroup", "smcd -d linkgroup show", "smcd linkgroup link-show",
	} {
		x.asRecorded(x.live, command)
	}
	x.strict().asRecorded(x.live, "smcr linkgroup show zzz")
}

// recordedGID is a GID of the recorded machines without its last digit.
const recordedGID = "0000:0000:0000:0000:0000:ffff:0a4d:000"

func (x *tools) testEID() {
	type row struct {
		UEID string `json:"ueid"`
	}
	e := queryOne[row](x.t, x.host, "ueid", "list")
	for _, command := range []string{"smcr ueid", "smcr ueid show", "smcd ueid", "smcd ueid show"} {
		x.asRecorded(x.live, command, fmt.Sprintf("%-32s", "SMCV2-EXAMPLE-UEID"), fmt.Sprintf("%-32s", e.UEID))
	}
	x.asRecorded(x.edit, "smcr ueid add T2")
	if rows := query[row](x.t, x.host, "ueid", "list"); !slices.Contains(rows, row{"T2"}) || len(rows) != 2 {
		x.t.Errorf("ueid list after smcr ueid add: %v", rows)
	}
	for _, command := range []string{
		"smcr ueid del T2", "smcr ueid del T9", "smcr ueid add lower", "smcr ueid add A..B",
		"smcd ueid add DD", "smcd ueid del DD",
	} {
		x.asRecorded(x.edit, command)
	}
	x.same(printed{err: "Error: specified User EID is already defined\n", status: 255}, "smcr ueid add SMCV2-EXAMPLE-UEID")
	// The link group keeps its identifier.
	x.same(printed{}, "smcr ueid flush")
	if rows := query[row](x.t, x.host, "ueid", "list"); len(rows) != 0 {
		x.t.Errorf("ueid list after smcr ueid flush: %v", rows)
	}
	x.same(printed{}, "smcr ueid")
	x.asRecorded(x.edit, "smcr ueid add SMCV2-EXAMPLE-UEID")

	s := queryOne[struct {
		SEID    string `json:"seid"`
		Enabled bool   `json:"enabled"`
	}](x.t, x.host, "seid", "list")
	if s.SEID != "" || s.Enabled {
		x.t.Errorf("seid list: %+v", s)
	}
	x.asRecorded(x.live, "smcd seid")
	x.asRecorded(x.live, "smcd seid show")
	x.asRecorded(x.edit, "smcd seid enable")
	x.asRecorded(x.edit, "smcd seid disable")
	x.env = []string{"SMCR_COMPAT=strict"}
	x.asRecorded(x.live, "smcr seid")
}

// recordedRow returns a row of smcss in the recorded form.
func (x *tools) recordedRow(command, part string) string {
	x.t.Helper()
	for line := range strings.Lines(x.live.of(x.t, command).out) {
		if strings.Contains(line, part) {
			return line
		}
	}
	x.t.Fatalf("%s: no line with %q was recorded", command, part)
	return ""
}

var (
	hexDigit = regexp.MustCompile("[0-9a-f]")

	// producerFlags match the flags of one direction, which connection list does not
	// show. Producer flags may be set in idle connections. The state flags after them are
	// not.
	producerFlags = regexp.MustCompile(`\b[0-9a-f]{2}(:00   )`)
)

// testSockets compares smcss with the list of connections.
func (x *tools) testSockets() {
	conns := query[connection](x.t, x.host, "connection", "list", "--all")
	address := func(a netip.AddrPort) string { return fmt.Sprintf("%-23s ", fmt.Sprintf("%s:%d", a.Addr(), a.Port())) }
	socket := func(c connection) string { return fmt.Sprintf("%05d %07d ", c.UID, c.Inode) }
	// active returns the row of a connection in the output of smcss with options.
	active := func(c connection, options string) string {
		row := x.recordedRow("smcss"+options, "0001733")
		if at := strings.Index(row, "<->"); at >= 0 {
			i := c.Info
			part := fmt.Sprintf("<->  %08x %08x %08x %08x %s %s 00:00   %s %s 00:00   %s %s %s ",
				i.Token, i.Sndbuf, i.RMBE, i.PeerRMBE, i.RXProd, i.RXCons, i.TXProd, i.TXCons, i.TXPrep, i.TXSent, i.TXFin)
			end := at + len(part)
			if end > len(row) || hexDigit.ReplaceAllString(row[at:end], "#") != hexDigit.ReplaceAllString(part, "#") {
				x.t.Fatalf("%q has not the form of the recorded %q", part, row)
			}
			row = row[:at] + part + row[end:]
		}
		return strings.NewReplacer(
			"00000 0001733 ", socket(c),
			"::ffff:10.77.0.1:5201   ::ffff:10.77.0.2:52686  ", address(c.Local)+address(c.Remote),
			"SERV", c.Link.Role, recordedGID+"1", c.Link.GID, recordedGID+"2", c.Link.PeerGID,
			"rxe0            01   01     ", fmt.Sprintf("%-15s %02x   %02x     ", c.Link.IBDev, c.Link.IBPort, c.Link.ID),
		).Replace(row)
	}
	listen := func(c connection, options string) string {
		return strings.NewReplacer("00000 0001704 ", socket(c), "0.0.0.0:5201            ", address(c.Local)).Replace(
			x.recordedRow("smcss"+options, "0001704"))
	}
	for _, tt := range []struct {
		options           string
		connected, listen bool
	}{
		{"", true, false}, {" -W", true, false}, {" -d", true, false}, {" -R", true, false}, {" -d -R", true, false},
		{" -a", true, true}, {" -a -d", true, true}, {" -a -W", true, true}, {" --all", true, true},
		{" -l", false, true}, {" --listening", false, true}, {" -D", false, false},
	} {
		var want []string
		for _, c := range conns {
			switch {
			case c.State == "ACTIVE" && c.Mode == "SMCR" && c.Link != nil && c.Info != nil:
				if tt.connected {
					want = append(want, active(c, tt.options))
				}
			case c.State == "LISTEN":
				if tt.listen {
					want = append(want, listen(c, tt.options))
				}
			default:
				x.t.Fatalf("connection list: %+v", c)
			}
		}
		got := x.prints(strings.Fields("smcss" + tt.options)...)
		head, _, _ := strings.Cut(x.live.of(x.t, "smcss"+tt.options).out, "\n")
		gotHead, rows, _ := strings.Cut(got.out, "\n")
		if gotHead != head || got.err != "" || got.status != 0 {
			x.t.Errorf("smcss%s: %+v, want the header %q", tt.options, got, head)
		}
		slices.Sort(want)
		if diff := cmp.Diff(strings.Join(want, ""), strings.Join(slices.Sorted(strings.Lines(producerFlags.ReplaceAllString(rows, "00$1"))), "")); diff != "" {
			x.t.Errorf("smcss%s (-connection list +smcss):\n%s", tt.options, diff)
		}
	}
	for _, command := range []string{"smcss --bad", "smcss -l -a", "smcss -R -D", "smcss -h"} {
		p := x.live.of(x.t, command)
		// getopt prints the name by which the program was called.
		p.err = strings.ReplaceAll(p.err, "SMCTOOLS/", x.dir+"/")
		x.same(p, command)
	}
}
