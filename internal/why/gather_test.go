// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/userstack/network"
)

// A world has the sockets of a kernel, a stack, and processes.
type world struct {
	tcp    []network.TCPInfo
	stacks nl.Multi
	procs  *procs
	waited []time.Duration
	later  func() // while the command waits
	// enabled are those of the configuration.
	enabled []nl.Attachment
}

// socket returns a TCP socket. Without a remote address it listens.
func socket(cookie, inode uint64, local, remote string) network.TCPInfo {
	s := network.TCPInfo{Connection: nl.Connection{State: smc.StateListen, Cookie: cookie, Inode: inode, UID: 5, Mode: nl.ModeSMCR, Local: netip.MustParseAddrPort(local)}}
	if remote != "" {
		s.State, s.Mode, s.Remote = smc.StateActive, nl.ModeTCP, netip.MustParseAddrPort(remote)
		s.Counted, s.Sent, s.Received, s.Retransmits = true, 1000, 2000, 3
	}
	return s
}

func newWorld(t *testing.T) *world {
	w := &world{tcp: []network.TCPInfo{
		socket(1, 101, "0.0.0.0:80", ""),
		socket(2, 102, "10.0.0.1:80", "10.0.0.2:4001"), // left to TCP
		socket(3, 103, "10.0.0.1:80", "10.0.0.3:4002"), // the stack takes it at the device
		socket(4, 104, "[::ffff:10.0.0.1]:5000", "[::ffff:10.0.0.9]:443"),
		socket(5, 105, "127.0.0.1:25", ""),
		socket(6, 106, "0.0.0.0:9790", ""),
	}}
	state := nltest.State{
		Devices: []nl.Device{{Name: "soft-eth0", Provider: "softroce", Ports: []nl.Port{{Valid: true}}, Resent: &nl.Resent{Packets: 70}}},
		Links:   []nl.Link{{LinkGroup: 0x100, ID: 1, Resent: &nl.Resent{Packets: 7}}, {LinkGroup: 0x200, ID: 1, Resent: &nl.Resent{Packets: 9}}},
		Connections: []nl.Connection{
			{State: smc.StateListen, Cookie: 1, Inode: 101, UID: 5, Local: w.tcp[0].Local},
			{State: smc.StateActive, Mode: nl.ModeTCP, Cookie: 2, Inode: 102, UID: 5, Local: w.tcp[1].Local, Remote: w.tcp[1].Remote,
				Fallback: nl.ConnFallback{Reason: uint32(smc.DiagPeerNoSMC)}},
			{State: smc.StateActive, Mode: nl.ModeSMCR, Cookie: 3, UID: 5, Local: w.tcp[2].Local, Remote: w.tcp[2].Remote, LinkGroup: 0x100,
				Link: &nl.ConnLink{LinkID: 1, IBDev: "soft-eth0", IBPort: 1, Role: smc.Server}, TXBytes: 500, RXBytes: 600},
		},
	}
	state.Attachments = []nl.Attachment{{Path: "/x/web", Connect: true, Accept: true}}
	state.SysInfo.Stack, state.SysInfo.PID = "smcr", 50
	w.stacks = nl.Multi{{Name: "user", Control: keepOpen{nltest.NewFake(state)}}}
	w.procs = fakeProcs(t,
		fakeTask{pid: 50, comm: "smcr"},
		fakeTask{pid: 60, parent: 1, uid: 5, comm: "smcr", cmdline: "smcr-runner 3 59 0 run -v -- web", cgroup: "0::/x/web\n"},
		fakeTask{pid: 61, parent: 60, uid: 5, comm: "web", cmdline: "web", cgroup: "0::/x/web\n", sockets: []int{101, 102, 103}},
		fakeTask{pid: 62, parent: 61, uid: 5, comm: "web", cmdline: "web", cgroup: "0::/x/web\n", sockets: []int{101}},
		fakeTask{pid: 80, parent: 1, uid: 6, comm: "curl", cmdline: "curl x", sockets: []int{104}},
		fakeTask{pid: 81, parent: 80, uid: 6, comm: "idle", cmdline: "idle"},
		fakeTask{pid: 90, parent: 1, comm: "master", cmdline: "master", sockets: []int{105}},
		fakeTask{pid: 91, parent: 90, comm: "worker", cmdline: "worker", sockets: []int{105}},
		fakeTask{pid: 95, parent: 1, comm: "smcr", cmdline: "/usr/bin/smcr exporter", cgroup: "0::/system.slice/smcr-exporter.service\n", sockets: []int{106}},
		fakeTask{pid: 443, comm: "kworker", kernel: true},
	)
	return w
}

// ask runs the command.
func (w *world) ask(t *testing.T, arg string, more ...func(*options)) (rows []socketJSON, notes string, err error) {
	t.Helper()
	streams, _, out, errOut := cmdutil.MemoryStreams()
	f := &cmdutil.Factory{IO: streams, Backend: "auto", Dial: func(context.Context, string) (nl.Multi, error) {
		if w.stacks == nil {
			return nil, nl.ErrNoBackend
		}
		return w.stacks, nil
	}}
	o := &options{Factory: f, arg: arg, format: cmdutil.FormatJSON, env: &environment{
		procs: w.procs, addresses: func() map[netip.Addr]bool { return map[netip.Addr]bool{netip.MustParseAddr("10.0.0.1"): true} },
		sockets: func(found func(network.TCPInfo)) error {
			for _, s := range w.tcp {
				found(s)
			}
			return nil
		},
		enabled: func() []nl.Attachment { return w.enabled },
		lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			switch host {
			case "peer.example":
				return []netip.Addr{netip.MustParseAddr("fd00::2"), netip.MustParseAddr("::ffff:10.0.0.2")}, nil
			case "localhost":
				return []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")}, nil
			}
			return nil, errors.New("no such host")
		},
		wait: func(_ context.Context, d time.Duration) {
			w.waited = append(w.waited, d)
			if w.later != nil {
				w.later()
			}
		},
	}}
	if o.target, err = parseTarget(arg); err != nil {
		t.Fatal(err)
	}
	for _, m := range more {
		m(o)
	}
	if err = run(t.Context(), o); err == nil {
		if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
			t.Fatal(err)
		}
	} else if out.Len() > 0 {
		t.Errorf("%s: output with an error: %s", arg, out)
	}
	return rows, errOut.String(), err
}

// TestHost: the name of a host stands for its addresses, also with a port.
func TestHost(t *testing.T) {
	for _, arg := range []string{"peer.example", "peer.example:4001"} {
		rows, _, err := newWorld(t).ask(t, arg)
		if err != nil || len(rows) != 1 || rows[0].Remote != "10.0.0.2:4001" {
			t.Errorf("%s: %+v, %v", arg, rows, err)
		}
	}
	for arg, want := range map[string]string{
		"peer.example:5": "no open TCP or SMC socket of this network namespace has [fd00::2]:5: 'smcr check [fd00::2]:5' tries a connection, and 'smcr stats show -d' counts those that have ended",
		"10.0.0.77":      "no open TCP or SMC socket of this network namespace has address 10.0.0.77: 'smcr check 10.0.0.77:PORT' tries a connection, and 'smcr stats show -d' counts those that have ended",
		"nowhere:80":     "the name nowhere has no address: see 'getent hosts nowhere'",
	} {
		if rows, _, err := newWorld(t).ask(t, arg); rows != nil || cmdutil.ExitCode(err) != cmdutil.ExitNotFound || cmdutil.Message(err) != want {
			t.Errorf("%s: %v, %q, want %q", arg, rows, cmdutil.Message(err), want)
		}
	}
}

// TestEnabled: a program that the configuration attaches lacks a stack, and is not to be enabled once more.
func TestEnabled(t *testing.T) {
	for path, want := range map[string]string{"/x/web": "no-stack", "/x/other": notRun} {
		w := newWorld(t)
		w.stacks, w.enabled = nil, []nl.Attachment{{Path: path, Connect: true, Accept: true}}
		rows, _, err := w.ask(t, ":80")
		if err != nil || len(rows) == 0 {
			t.Fatalf("%+v, %v", rows, err)
		}
		for _, r := range rows {
			if r.Reason != want {
				t.Errorf("%s: %+v, want reason %s", path, r, want)
			}
		}
	}
}

// TestAsk: what is asked about is found, each socket once, with its process.
func TestAsk(t *testing.T) {
	for arg, want := range map[string][]string{
		":80": {
			"listener 0.0.0.0:80  SMCR  61+1", "connection 10.0.0.1:80 10.0.0.2:4001 TCP peer-no-smc 61+0", "connection 10.0.0.1:80 10.0.0.3:4002 SMCR  61+0",
		},
		"10.0.0.1:80": {
			"listener 0.0.0.0:80  SMCR  61+1", "connection 10.0.0.1:80 10.0.0.2:4001 TCP peer-no-smc 61+0", "connection 10.0.0.1:80 10.0.0.3:4002 SMCR  61+0",
		},
		"10.0.0.3":        {"connection 10.0.0.1:80 10.0.0.3:4002 SMCR  61+0"},
		"10.0.0.9:443":    {"connection 10.0.0.1:5000 10.0.0.9:443 TCP not-under-run 80+0"},
		"443":             {"connection 10.0.0.1:5000 10.0.0.9:443 TCP not-under-run 80+0"}, // the process is one of the kernel
		"pid:80":          {"connection 10.0.0.1:5000 10.0.0.9:443 TCP not-under-run 80+0"},
		"80":              {"connection 10.0.0.1:5000 10.0.0.9:443 TCP not-under-run 80+0"},
		"::ffff:10.0.0.9": {"connection 10.0.0.1:5000 10.0.0.9:443 TCP not-under-run 80+0"},
		":25":             {"listener 127.0.0.1:25  TCP local 90+1"},
		"61": {
			"listener 0.0.0.0:80  SMCR  61+1", "connection 10.0.0.1:80 10.0.0.2:4001 TCP peer-no-smc 61+0", "connection 10.0.0.1:80 10.0.0.3:4002 SMCR  61+0",
		},
		"62": {"listener 0.0.0.0:80  SMCR  62+1"},
		"60": {
			"listener 0.0.0.0:80  SMCR  61+1", "connection 10.0.0.1:80 10.0.0.2:4001 TCP peer-no-smc 61+0", "connection 10.0.0.1:80 10.0.0.3:4002 SMCR  61+0",
		},
	} {
		w := newWorld(t)
		rows, _, err := w.ask(t, arg)
		var got []string
		for _, r := range rows {
			p := "-"
			if r.Process != nil {
				p = string(rune('0'+r.Process.PID/10)) + string(rune('0'+r.Process.PID%10)) + "+" + string(rune('0'+r.Process.More))
			}
			got = append(got, strings.Join([]string{r.Kind, r.Local, r.Remote, r.Carrier, r.Reason, p}, " "))
		}
		if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: %v\n%s\nwant\n%s", arg, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if len(w.waited) > 0 {
			t.Errorf("%s: waited %v", arg, w.waited)
		}
	}
}

func TestNotes(t *testing.T) {
	w := newWorld(t)
	for arg, want := range map[string]string{
		"80":  "smcr: 80 is process 80 (curl); for the port, use 'smcr why :80'\n",
		"443": "smcr: there is no process 443: this is the port\n",
		"60":  "smcr: process 60 (smcr) has no sockets here: this is its child process 61\n",
		"61":  "",
		":80": "", "pid:80": "",
		"90": "smcr: its child processes have sockets, too: 'smcr why 91', or 'smcr why :25' for the port\n",
	} {
		if _, notes, err := w.ask(t, arg); err != nil || notes != want {
			t.Errorf("%s: %q, %v, want %q", arg, notes, err, want)
		}
	}
}

// TestNothing: what is not there is an error that says what was looked for, and what to try.
func TestNothing(t *testing.T) {
	w := newWorld(t)
	for arg, want := range map[string]string{
		":81": "port 81", "10.9.9.9": "address 10.9.9.9", "10.9.9.9:1": "10.9.9.9:1", "pid:9": "there is no process 9", "9": "port 9", "70000": "there is no process 70000",
		"pid:443": "thread of the kernel", "50": "process 50 (smcr) is the SMC stack", "81": "no TCP or SMC socket of process 81 (idle)",
	} {
		rows, _, err := w.ask(t, arg)
		if rows != nil || cmdutil.ExitCode(err) != cmdutil.ExitNotFound || !strings.Contains(cmdutil.Message(err), want) {
			t.Errorf("%s: %v, %v, want %q", arg, rows, err, want)
		}
	}
}

// TestRates: with an interval, rates are what was counted meanwhile. A connection that has ended
// has none.
func TestRates(t *testing.T) { synctest.Test(t, testRates) }

func testRates(t *testing.T) {
	w := newWorld(t)
	w.later = func() {
		w.tcp[1].Sent, w.tcp[1].Retransmits = 5000, 4
		w.tcp = w.tcp[:3]
		time.Sleep(20 * time.Millisecond)
	}
	rows, _, err := w.ask(t, ":80", func(o *options) { o.interval = time.Minute })
	if err != nil || len(rows) != 3 || len(w.waited) != 1 || w.waited[0] != time.Minute {
		t.Fatalf("%v, %v, waited %v", rows, err, w.waited)
	}
	l, tcp, over := rows[0], rows[1], rows[2]
	if l.Traffic != nil || l.Resent != nil || l.Clients == nil || *l.Clients != (clientsJSON{1, 1}) {
		t.Errorf("listener: %+v", l)
	}
	if tcp.Traffic.Sent != 5000 || tcp.Traffic.SentRate == nil || *tcp.Traffic.SentRate < 4000 || *tcp.Traffic.ReceivedRate != 0 || tcp.Resent.N != 4 || *tcp.Resent.New != 1 || tcp.Resent.Device != "" {
		t.Errorf("TCP: %+v %+v", tcp.Traffic, tcp.Resent)
	}
	if over.Traffic.Sent != 500 || over.Traffic.Received != 600 || *over.Traffic.SentRate != 0 || over.Resent.N != 7 || *over.Resent.New != 0 || over.Resent.Link != 1 || over.Resent.Device != "" {
		t.Errorf("SMC-R: %+v %+v", over.Traffic, over.Resent)
	}
	w = newWorld(t)
	w.later = func() { w.tcp = nil }
	if rows, _, err := w.ask(t, "pid:80", func(o *options) { o.interval = time.Second }); err != nil || len(rows) != 1 || rows[0].Traffic.SentRate != nil || rows[0].Traffic.Sent != 1000 {
		t.Errorf("a connection that has ended: %+v, %v", rows, err)
	}
	// A listener has no rates, for which nobody has to wait.
	w = newWorld(t)
	if _, _, err := w.ask(t, ":25", func(o *options) { o.interval = time.Second }); err != nil || len(w.waited) != 0 {
		t.Errorf("a listener: %v, waited %v", err, w.waited)
	}
}

// TestStackSilent: without a stack, and with one that does not answer, what the kernel says is shown.
func TestStackSilent(t *testing.T) {
	w := newWorld(t)
	w.stacks = nil
	rows, notes, err := w.ask(t, "10.0.0.9")
	if err != nil || notes != "" || len(rows) != 1 || !strings.Contains(rows[0].Why, "no SMC stack runs here") {
		t.Errorf("no stack: %+v, %q, %v", rows, notes, err)
	}
	if _, _, err := w.ask(t, "10.0.0.9", func(o *options) { o.Backend = "user" }); cmdutil.ExitCode(err) != cmdutil.ExitNoBackend {
		t.Errorf("--backend user: %v", err)
	}
	w = newWorld(t)
	w.stacks = nl.Multi{{Name: "user", Control: broken{w.stacks[0].Control}}}
	if rows, notes, err := w.ask(t, "10.0.0.9", func(o *options) { o.interval = time.Second }); err != nil || len(rows) != 1 || strings.Count(notes, "does not answer") != 1 {
		t.Errorf("a stack that does not answer: %+v, %q, %v", rows, notes, err)
	}
}

// keepOpen is a stack that more than one command asks.
type keepOpen struct{ nl.Control }

func (keepOpen) Close() error { return nil }

// broken is a stack that does not answer.
type broken struct{ nl.Control }

func (broken) SysInfo(context.Context) (nl.SysInfo, error) {
	return nl.SysInfo{}, context.DeadlineExceeded
}
func (broken) Close() error { return nil }

// TestKernel: the kernel's SMC sockets are shown once, with the process that has them, and with
// the counters of the TCP connection below if this carries them.
func TestKernel(t *testing.T) {
	w := newWorld(t)
	w.tcp = []network.TCPInfo{
		socket(1, 901, "0.0.0.0:80", ""), // the sockets below those of SMC
		socket(2, 902, "10.0.0.1:80", "10.0.0.2:4001"),
		socket(3, 903, "10.0.0.1:80", "10.0.0.3:4002"),
		socket(4, 104, "10.0.0.1:5000", "10.0.0.9:443"),
	}
	conn := func(inode uint64, mode nl.Mode, of int) nl.Connection {
		c := w.tcp[of].Connection
		c.Cookie, c.Inode, c.Mode = 90+inode, inode, mode
		return c
	}
	state := nltest.State{
		Devices:     []nl.Device{{Name: "mlx5_0", Ports: []nl.Port{{Valid: true}}}},
		Connections: []nl.Connection{conn(101, nl.ModeSMCR, 0), conn(102, nl.ModeTCP, 1), conn(103, nl.ModeSMCR, 2), {State: smc.StateInit, Inode: 9}},
	}
	state.Connections[1].Fallback.Reason = uint32(smc.DiagPeerNoSMC)
	state.Connections[2].Link = &nl.ConnLink{LinkID: 1, IBDev: "mlx5_0", IBPort: 1, Role: smc.Client}
	w.stacks = nl.Multi{{Name: kernel, Control: keepOpen{nltest.NewFake(state)}}}
	rows, _, err := w.ask(t, ":80")
	if err != nil || len(rows) != 3 {
		t.Fatalf("%+v, %v", rows, err)
	}
	l, tcp, over := rows[0], rows[1], rows[2]
	if l.Stack != kernel || l.Carrier != "SMCR" || l.Process == nil || l.Process.PID != 61 || *l.Clients != (clientsJSON{1, 1}) {
		t.Errorf("listener: %+v", l)
	}
	if tcp.Stack != kernel || tcp.Reason != "peer-no-smc" || tcp.Process.PID != 61 || tcp.Traffic == nil || tcp.Traffic.Sent != 1000 || tcp.Resent.N != 3 {
		t.Errorf("TCP: %+v", tcp)
	}
	if over.Stack != kernel || over.Carrier != "SMCR" || over.IBDev != "mlx5_0" || over.Software || over.Process == nil || over.Process.PID != 61 || over.Traffic != nil || over.Resent != nil {
		t.Errorf("SMC-R: %+v", over)
	}
	rows, _, err = w.ask(t, "pid:80")
	if err != nil || len(rows) != 1 || rows[0].Reason != notRun || !strings.Contains(rows[0].Why, "its own (AF_SMC)") {
		t.Errorf("a program that uses TCP sockets: %+v, %v", rows, err)
	}
}

// TestSharedListeners: each of several listeners at one address is shown, with its process.
func TestSharedListeners(t *testing.T) {
	w := newWorld(t)
	w.tcp = append(w.tcp, socket(6, 106, "0.0.0.0:80", ""), socket(7, 104, "0.0.0.0:80", ""))
	rows, _, err := w.ask(t, ":80")
	n := 0
	for _, r := range rows {
		if r.Kind == "listener" {
			n++
		}
	}
	if err != nil || n != 3 || rows[0].Carrier != "SMCR" || rows[1].Carrier != "TCP" {
		t.Errorf("%d listeners: %+v, %v", n, rows, err)
	}
}

// TestHostileProcess: what a process calls itself controls no terminal, adds no line, and gets into
// no command that a user could copy.
func TestHostileProcess(t *testing.T) {
	const name = "a\n\x1b[2J'; x $("
	w := newWorld(t)
	w.procs = fakeProcs(t, fakeTask{pid: 80, parent: 1, uid: 6, comm: name, cmdline: "$(reboot) x", cgroup: "0::/system.slice/$(x).service\n", sockets: []int{104}},
		fakeTask{pid: 81, comm: name, cmdline: "x"})
	rows, _, err := w.ask(t, "pid:80")
	if err != nil || len(rows) != 1 || rows[0].Process.Command != name || rows[0].Process.Unit != "" {
		t.Fatalf("%+v, %v", rows, err)
	}
	f := client(func(f *Facts) { f.Process = w.procs.process(80) })
	text := report([]*Facts{f}, false)
	if strings.ContainsAny(text, "\x1b\x01") || strings.Count(text, "\n") != strings.Count(report([]*Facts{client()}, false), "\n") {
		t.Errorf("%q", text)
	}
	if !strings.Contains(text, "'smcr run -- PROGRAM'") && !strings.Contains(text, "'smcr run -- PROGRAM ...'") {
		t.Errorf("advice: %q", text)
	}
	_, notes, err := w.ask(t, "81")
	if m := cmdutil.Message(err); err == nil || strings.ContainsAny(m+notes, "\x1b\n") {
		t.Errorf("%q, %q", m, notes)
	}
}

// TestTranslated: a host translates addresses between a program and the stack. The connection is found by both, once, with what carries it.
func TestTranslated(t *testing.T) {
	w := newWorld(t)
	w.tcp = []network.TCPInfo{socket(3, 103, "127.0.0.1:4000", "127.0.0.1:8080"), socket(5, 102, "10.0.0.1:80", "10.0.0.2:4001"), socket(6, 101, "0.0.0.0:80", "")}
	w.stacks = nl.Multi{{Name: "user", Control: keepOpen{nltest.NewFake(nltest.State{Connections: []nl.Connection{
		{State: smc.StateActive, Mode: nl.ModeSMCR, Cookie: 3, UID: 5, Local: netip.MustParseAddrPort("10.0.0.1:4000"), Remote: netip.MustParseAddrPort("10.0.0.9:80")},
		{State: smc.StateActive, Mode: nl.ModeSMCR, Cookie: 5, UID: 5, Local: netip.MustParseAddrPort("10.0.0.1:8088"), Remote: netip.MustParseAddrPort("10.0.0.2:4001")},
	}})}}}
	for arg, accepted := range map[string]bool{
		"127.0.0.1:8080": false, ":8080": false, "10.0.0.9:80": false, "10.0.0.9": false, "localhost:8080": false,
		":8088": true, "10.0.0.2:4001": true,
	} {
		rows, _, err := w.ask(t, arg)
		if err != nil || len(rows) != 1 || rows[0].Carrier != "SMCR" || rows[0].Process == nil || rows[0].Process.PID != 61 || rows[0].Accepted != accepted {
			t.Errorf("%s: %+v, %v", arg, rows, err)
		}
	}
	rows, _, err := w.ask(t, "61")
	if err != nil || len(rows) != 3 || rows[0].Clients == nil || *rows[0].Clients != (clientsJSON{SMC: 1}) {
		t.Errorf("of the process: %+v, %v", rows, err)
	}
}

// TestPartOfSmcr: the exporter is named, and there is no advice about it.
func TestPartOfSmcr(t *testing.T) {
	rows, _, err := newWorld(t).ask(t, ":9790")
	if err != nil || len(rows) != 1 || rows[0].Process == nil || rows[0].Process.Part != "smcr exporter" || rows[0].Advice != nothing || !strings.Contains(rows[0].Why, "'smcr exporter'") {
		t.Errorf("%v: %+v", err, rows)
	}
}

// TestOtherEnd: that both ends are on this machine is said only if the other end is one of its sockets.
func TestOtherEnd(t *testing.T) {
	const passed, within = "no socket here is the other end", "both ends are on this machine"
	for _, test := range []struct {
		name  string
		more  []network.TCPInfo
		asked string // the local address of the socket
		want  string
	}{
		{"to the loopback address", []network.TCPInfo{socket(21, 104, "127.0.0.1:6000", "127.0.0.1:25"), socket(22, 0, "127.0.0.1:25", "127.0.0.1:6000")}, "127.0.0.1:6000", within},
		{"to another host, by the loopback address", []network.TCPInfo{socket(21, 104, "127.0.0.1:6000", "127.0.0.1:25")}, "127.0.0.1:6000", passed},
		{"beside one that is within", []network.TCPInfo{socket(21, 104, "127.0.0.1:6000", "127.0.0.1:26"), socket(23, 0, "127.0.0.1:6000", "127.0.0.1:25"), socket(22, 0, "127.0.0.1:25", "127.0.0.1:6000")}, "127.0.0.1:6000", passed},
		{"by the own address", []network.TCPInfo{socket(21, 104, "10.0.0.1:6000", "10.0.0.1:90")}, "10.0.0.1:6000", passed},
		{"in both forms of an address", []network.TCPInfo{socket(21, 104, "[::ffff:10.0.0.1]:6000", "[::ffff:10.0.0.1]:90"), socket(22, 0, "10.0.0.1:90", "10.0.0.1:6000")}, "10.0.0.1:6000", within},
		{"redirected, the client", []network.TCPInfo{socket(21, 104, "10.0.0.1:6000", "10.0.0.1:90"), socket(22, 0, "10.0.0.1:8090", "10.0.0.1:6000")}, "10.0.0.1:6000", within},
		{"redirected, the server", []network.TCPInfo{socket(21, 0, "10.0.0.1:6000", "10.0.0.1:90"), socket(22, 104, "10.0.0.1:8090", "10.0.0.1:6000")}, "10.0.0.1:8090", within},
		{"with a client of another host at the port", []network.TCPInfo{socket(21, 104, "10.0.0.1:6000", "10.0.0.1:80")}, "10.0.0.1:6000", passed},
	} {
		w := newWorld(t)
		w.tcp = append(w.tcp, test.more...)
		rows, _, err := w.ask(t, test.asked)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		seen := false
		for _, r := range rows {
			if r.Process == nil || r.Process.PID != 80 {
				continue
			}
			seen = true
			if !strings.Contains(r.Why, test.want) || (test.want == passed) != strings.Contains(r.Advice, "'conntrack -L'") {
				t.Errorf("%s: %s; %s", test.name, r.Why, r.Advice)
			}
		}
		if !seen {
			t.Errorf("%s: %+v", test.name, rows)
		}
	}
}
