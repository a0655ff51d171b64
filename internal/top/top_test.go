// SPDX-License-Identifier: Apache-2.0

package top

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/sample"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the screens in testdata")

// began is the time of the first sample of all tests.
var began = time.Date(2026, 11, 20, 19, 45, 0, 0, time.Local)

// A scene is stacks with their connections at one moment.
type scene struct {
	at     time.Time
	stacks []*sample.Stack
	conns  map[string][]nl.Connection // by stack
}

// digest makes a sample of the scene.
func (s scene) digest(q Query, before *baseline) (*Sample, *baseline) {
	d := newDigest(q, before, s.at)
	for _, st := range s.stacks {
		d.Begin(st)
		// The stack is read twice, as if its table had changed.
		d.Connection(&nl.Connection{State: smc.StateActive, Mode: nl.ModeTCP})
		d.Begin(st)
		for i := range s.conns[st.Name] {
			d.Connection(&s.conns[st.Name][i])
		}
		d.End()
	}
	return d.finish(s.stacks, func(i uint32) string { return fmt.Sprintf("eth%d", i) })
}

func gid(n byte) smc.GID { return smc.GID{0xfe, 0x80, 15: n} }

// host returns the scene of a host with both stacks, sec seconds after the begin. All
// counters have grown by what is usual in this time.
func host(sec uint64) scene {
	user := &sample.Stack{
		Name: "user", Info: nl.SysInfo{PID: 4711, StackVersion: "1.5"},
		Stats: nl.Stats{SMCR: stats.Tech{
			RXBytes: 1e9 + 40e6*sec, TXBytes: 5e9 + 1500*sec, RXCalls: 100 * sec, TXCalls: 20 * sec, ClientV2: 10 + 2*sec,
		}, ServerHandshakeErrors: sec},
		Fallbacks: nl.Fallbacks{ClientTotal: 7 + 3*sec, Reasons: []nl.Fallback{
			{Side: smc.Client, Reason: uint32(smc.DiagMem), Count: 2}, {Side: smc.Client, Reason: 0x03010000, Count: 5 + 3*sec},
		}},
		Groups: []nl.LinkGroup{
			{ID: 0x100, Role: smc.Server, Type: smc.GroupSymmetric, Peer: "10.0.0.2", Conns: 2, Sndbuf: 1 << 20, RMB: 2 << 20, Links: 2, PNETID: "NET1", V2: &nl.V2Common{Version: 2, PeerHost: "hostB"}},
			{ID: 0x200, Role: smc.Client, Type: smc.GroupSingle, Peer: "fd00::2", Conns: 1, Sndbuf: 65536, RMB: 65536, Links: 1},
		},
		Links: []nl.Link{
			{LinkGroup: 0x100, ID: 1, IBDev: "srx_eth1", IBPort: 1, State: smc.LinkActive, Conns: 2, NetDev: 1, GID: gid(1), PeerGID: gid(2)},
			{LinkGroup: 0x100, ID: 2, IBDev: "srx_eth2", IBPort: 1, State: smc.LinkActivating, NetDev: 2, GID: gid(3), PeerGID: gid(4)},
			{LinkGroup: 0x200, ID: 1, IBDev: "srx_eth1", IBPort: 1, State: smc.LinkActive, Conns: 1, NetDev: 1, GID: gid(1), PeerGID: gid(9), Role: smc.Client},
		},
		Devices: []nl.Device{
			{Name: "srx_eth1", Provider: "softroce", Resent: &nl.Resent{Packets: 100 + 12*sec}, Ports: []nl.Port{{Valid: true, Active: true, NetDev: 1, Links: 2}}},
			{Name: "srx_eth2", Provider: "softroce", Ports: []nl.Port{{Valid: true, NetDev: 2, Links: 1}}},
		},
	}
	kernel := &sample.Stack{
		Name: sample.Kernel, Stats: nl.Stats{SMCR: stats.Tech{RXBytes: 5000 * sec}},
		Groups:  []nl.LinkGroup{{ID: 0x300, Role: smc.Client, Type: smc.GroupSingle, Conns: 1}},
		Links:   []nl.Link{{LinkGroup: 0x300, ID: 1, IBDev: "mlx5_0", IBPort: 1, Role: smc.Client, State: smc.LinkActive, Conns: 1, NetDev: 3, GID: gid(5), PeerGID: gid(6)}},
		Devices: []nl.Device{{Name: "mlx5_0", Ports: []nl.Port{{Valid: true, Active: true, NetDev: 3, Links: 1}}}},
	}
	on := func(id uint8, peer byte) *nl.ConnLink {
		return &nl.ConnLink{LinkID: id, IBDev: "srx_eth1", IBPort: 1, GID: gid(1), PeerGID: gid(peer)}
	}
	conns := map[string][]nl.Connection{
		"user": {
			{State: smc.StateActive, Mode: nl.ModeSMCR, Local: addr("10.0.0.1:80"), Remote: addr("10.0.0.2:40001"), Inode: 11, LinkGroup: 0x100, Link: on(1, 2), PID: 100, Command: "nginx", RXBytes: 1000 * sec, TXBytes: 1e6 * sec},
			{State: smc.StateActive, Mode: nl.ModeSMCR, Local: addr("10.0.0.1:80"), Remote: addr("10.0.0.2:40002"), Inode: 12, LinkGroup: 0x100, Link: on(1, 2), PID: 100, Command: "nginx", RXBytes: 40e6 * sec, TXBytes: 500 * sec},
			{State: smc.StatePeerCloseWait1, Mode: nl.ModeSMCR, Local: addr("[fd00::1]:50000"), Remote: addr("[fd00::2]:443"), Inode: 13, LinkGroup: 0x200, Link: on(1, 9), PID: 101, Command: "c\x1b[2Jurl世界", RXBytes: 7, TXBytes: 7},
			{State: smc.StateActive, Mode: nl.ModeTCP, Local: addr("10.0.0.1:50002"), Remote: addr("10.0.0.3:22"), Inode: 14, PID: 102, Command: "ssh", Fallback: nl.ConnFallback{Reason: 0x03010000}},
			{State: smc.StateActive, Mode: nl.ModeTCP, Local: addr("127.0.0.1:1"), Remote: addr("127.0.0.1:2"), Inode: 15, Fallback: nl.ConnFallback{Reason: uint32(smc.DiagLocal)}},
			{State: smc.StateListen, Mode: nl.ModeSMCR, Local: addr("0.0.0.0:80"), Inode: 16},
		},
		// 100 bytes before the 16 bits of the cursors wrap, then 5000 bytes for each second.
		sample.Kernel: {{
			State: smc.StateActive, Mode: nl.ModeSMCR, Local: addr("10.0.0.1:5001"), Remote: addr("10.0.0.9:6000"), Inode: 21, Cookie: 5,
			Link: &nl.ConnLink{LinkID: 1, IBDev: "mlx5_0", IBPort: 1, Role: smc.Client, GID: gid(5), PeerGID: gid(6)},
			Info: &nl.ConnInfo{Sndbuf: 16384, RMBE: 65536, TXCons: cursor(65536, 1<<32-100+5000*sec), TXPrep: nl.Cursor{Count: 10}},
		}},
	}
	return scene{began.Add(time.Duration(sec) * time.Second), []*sample.Stack{kernel, user}, conns}
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// cursor is a cursor after so many bytes.
func cursor(size, bytes uint64) nl.Cursor {
	return nl.Cursor{Wrap: uint16(bytes / size), Count: uint32(bytes % size)}
}

// started returns a model that has two samples of the host, two seconds apart.
func started() (*Model, *baseline) {
	m := NewModel(2 * time.Second)
	s, before := host(1).digest(m.Query(), nil)
	m.Update(s)
	s, before = host(3).digest(m.Query(), before)
	m.Update(s)
	return m, before
}

// keys gives the model keys, separated by blanks.
func keys(m *Model, names string) {
	for _, k := range strings.Fields(names) {
		text := k
		if len(k) > 1 {
			text = ""
		}
		m.Key(k, text)
	}
}

// text returns a screen, with the style of each line before it.
func text(m *Model) string {
	var b strings.Builder
	for _, l := range m.Screen() {
		fmt.Fprintf(&b, "%c|%s|\n", " T#HSWF"[l.Style], l.Text)
	}
	return b.String()
}

func golden(t *testing.T, name string, m *Model) {
	t.Helper()
	got := text(m)
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got\n%s", name, diff)
	}
	checkShape(t, name, m)
}

// checkShape checks that a screen has the size of the terminal, in each line.
func checkShape(t *testing.T, name string, m *Model) {
	t.Helper()
	s := m.Screen()
	if len(s) != m.height {
		t.Errorf("%s, %dx%d: %d lines", name, m.width, m.height, len(s))
	}
	for _, l := range s {
		if width(l.Text) != m.width || strings.ContainsFunc(l.Text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("%s, %dx%d: %d cells: %q", name, m.width, m.height, width(l.Text), l.Text)
		}
	}
}

// TestScreens compares whole screens with those in testdata.
func TestScreens(t *testing.T) {
	for name, test := range map[string]struct {
		width, height int
		keys          string
	}{
		"summary":        {80, 24, ""},
		"groups":         {80, 24, "2"},
		"links":          {80, 24, "3"},
		"conns":          {80, 24, "4 down down"},
		"fallbacks":      {80, 24, "5"},
		"help":           {80, 24, "4 ?"},
		"conns_wide":     {160, 24, "4"},
		"conns_small":    {40, 10, "4 down"},
		"summary_small":  {40, 10, ""},
		"conns_by_peer":  {80, 24, "4 < < < < < r"},
		"conns_filter":   {80, 24, "4 / N G I N X enter"},
		"conns_typing":   {80, 24, "4 / n o t h e r e"},
		"group_opened":   {80, 24, "2 enter enter"},
		"paused_shorter": {80, 24, "4 p -"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := started()
			m.Resize(test.width, test.height)
			keys(m, test.keys)
			golden(t, name, m)
		})
	}
	m := NewModel(2 * time.Second)
	golden(t, "waiting", m)
	s, before := host(1).digest(m.Query(), nil)
	m.Update(s)
	golden(t, "first", m)
	m.Fail("no SMC: this kernel does not support it and no user-space stack runs in this network namespace: start one with 'systemctl enable --now smcr', or for one program with 'smcr run -- PROGRAM'")
	golden(t, "failed", m)
	s, _ = host(3).digest(m.Query(), before)
	m.Update(s)
	m2, _ := started()
	if got := text(m); got != text(m2) {
		t.Errorf("after a failure:\n%s", got)
	}
}
