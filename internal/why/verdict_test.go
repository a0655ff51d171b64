// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/output"
	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what is printed to testdata")

// client returns a connection that a program opened.
func client(change ...func(*Facts)) *Facts {
	f := &Facts{
		Conn: nl.Connection{
			State: smc.StateActive, Mode: nl.ModeTCP, UID: 4242,
			Local: netip.MustParseAddrPort("10.77.0.2:40000"), Remote: netip.MustParseAddrPort("10.77.0.1:8080"),
		},
		Process:   &Process{PID: 77, UID: 4242, Command: "curl", Start: "curl ..."},
		UserStack: true,
	}
	for _, c := range change {
		c(f)
	}
	return f
}

// server returns a listener.
func server(change ...func(*Facts)) *Facts {
	return client(slices.Insert(change, 0, func(f *Facts) {
		f.Conn.Mode = nl.ModeSMCR // as stacks list listeners
		f.Conn.State, f.Conn.Local, f.Conn.Remote = smc.StateListen, netip.MustParseAddrPort("0.0.0.0:8080"), netip.AddrPort{}
	})...)
}

func inStack(f *Facts)  { f.Stack = "user"; f.Process.Attached, f.Process.Run = true, true }
func inKernel(f *Facts) { f.Stack, f.KernelStack, f.UserStack = kernel, true, false }
func accepted(f *Facts) { f.Accepted = true }
func unseen(f *Facts)   { f.Process = nil }
func overSMC(f *Facts) {
	f.Conn.Mode, f.Conn.LinkGroup, f.Software = nl.ModeSMCR, 0x100, true
	f.Conn.Link = &nl.ConnLink{LinkID: 1, IBDev: "soft-eth0"}
}

func because(own, peer smc.Diagnosis) func(*Facts) {
	return func(f *Facts) { f.Conn.Fallback = nl.ConnFallback{Reason: uint32(own), Peer: uint32(peer)} }
}

// cases are facts with the verdicts.
var cases = []struct {
	name    string
	f       *Facts
	carrier Carrier
	over    string
	reason  string
	why     string // is in Why
	advice  string // is in Advice
}{
	{"SMC-R in user space", client(inStack, overSMC), SMCR, "the user-space stack, software RoCE soft-eth0", "", "both sides speak SMC", nothing},
	{"SMC-R by an adapter", client(inStack, overSMC, func(f *Facts) { f.Software = false }), SMCR, "the user-space stack, RDMA device soft-eth0", "", "both sides", nothing},
	{"SMC-R of the kernel", client(inKernel, overSMC), SMCR, "the kernel, RDMA device soft-eth0", "", "both sides", nothing},
	{"SMC-D", client(inKernel, func(f *Facts) { f.Conn.Mode = nl.ModeSMCD }), SMCD, "the kernel", "", "ISM device", nothing},
	{"the server does not speak SMC", client(inStack, because(smc.DiagPeerNoSMC, 0)), TCP, "", "peer-no-smc", "the peer does not speak SMC", "'smcr check 10.77.0.1:8080'"},
	{"the client does not speak SMC", client(inStack, accepted, because(smc.DiagPeerNoSMC, 0)), TCP, "", "peer-no-smc", "the peer does not speak SMC", "Start the client's program"},
	{"RoCE is blocked", client(inStack, because(smc.DiagNoPath, 0)), TCP, "", "roce-blocked", "UDP port 4791", "Open UDP port 4791 in both directions"},
	{"the peer declined", client(inStack, because(smc.DiagPeerDeclined, smc.DiagNoSMCRDev)), TCP, "", "no-smcr-device", "the peer declined: no SMC-R device", "'smcr device list'"},
	{"a code of tomorrow", client(inStack, because(0x03990099, 0)), TCP, "", "", "0x03990099", "Use a current smcr"},
	{"no reason", client(inStack), TCP, "", "", "no reason", "'smcr connection list'"},
	{"in the handshake", client(inStack, func(f *Facts) { f.Conn.State = smc.StateInit }), TCP, "", "", "is being made", "Ask again"},
	{"undecided", client(inStack, func(f *Facts) { f.Conn.State, f.Conn.Mode = smc.StateInit, nl.ModeSMCR }), TCP, "", "", "not decided yet", "Ask again"},
	{"a fallback of the kernel", client(inKernel, because(smc.DiagNoSMCDev, 0)), TCP, "", "no-smc-device", "no SMC device", "'smcr device list'"},

	{"not under smcr run", client(), TCP, "", notRun, "the program was not started under smcr run", "'smcr run -- curl ...'. Whether the peer speaks SMC: 'smcr check 10.77.0.1:8080'."},
	{"not under smcr run, accepted", client(accepted), TCP, "", notRun, "was not started under", "'smcr run -- curl ...'."},
	{"not under smcr run, and no stack", client(func(f *Facts) { f.UserStack = false }), TCP, "", notRun, "and no SMC stack runs here", "'smcr run -- curl ...'"},
	{"not under smcr run, and the kernel has SMC", client(func(f *Facts) { f.UserStack, f.KernelStack = false, true }), TCP, "", notRun, "the socket is one of TCP, and the kernel's SMC carries its own (AF_SMC)", "'smcr run -- curl ...'"},
	{"a container", client(accepted, func(f *Facts) {
		f.Process.Container, f.Process.Unit = strings.Repeat("0123456789abcdef", 4), "web.service"
	}), TCP, "", notRun, "was not started under", "without a restart: 'smcr attach --container 0123456789ab'; connections made before stay TCP."},
	{"a service", client(accepted, func(f *Facts) { f.Process.Unit = "nginx.service" }), TCP, "", notRun, "was not started under", "without a restart: 'smcr service enable nginx.service'; connections made before stay TCP."},
	{"within the machine", client(func(f *Facts) { f.Here = true }), TCP, "", "local", "both ends are on this machine", nothing},
	{"translated", client(func(f *Facts) { f.Translated = true }), TCP, "", notRun, "not started under smcr run; the peer has an address of this machine, but no socket here", "is not known here. If it leaves this machine: start it again with 'smcr run -- curl ...'."},
	{"translated, attached", client(func(f *Facts) { f.Translated, f.Process.Attached = true, true }), TCP, "", "", "no socket here is the other end", "if it stays on this machine."},
	{"translated, unseen", client(unseen, func(f *Facts) { f.Translated = true }), TCP, "", "", "no process has it", "Ask in the PID namespace"},
	{"within the machine, under smcr run", client(inStack, because(smc.DiagLocal, 0)), TCP, "", "local", "the peer is on this machine", nothing},
	{"under smcr run, and no stack", client(func(f *Facts) { f.Process.Attached, f.UserStack = true, false }), TCP, "", "no-stack", "no SMC stack runs here", "'systemctl enable --now smcr'"},
	{"under smcr run, and the stack does not know it", client(func(f *Facts) { f.Process.Attached = true }), TCP, "", "", "is older than that", "The next connections"},
	{"a stack that takes no connections", client(func(f *Facts) { f.NoWire = "the stack cannot take connections: EPERM" }), TCP, "", "no-wire", "cannot take connections: EPERM", "CAP_BPF"},
	{"beside the kernel's SMC", client(func(f *Facts) { f.NoWire, f.KernelStack = "the stack cannot", true }), TCP, "", notRun, "AF_SMC", "'smcr run"},
	{"the stack's own", client(func(f *Facts) { f.Process.IsStack = true }), TCP, "", "", "the SMC stack itself", nothing},
	{"of another user", client(unseen, func(f *Facts) { f.UID = 1000 }), TCP, "", "", "not visible to you", "Ask as root"},
	{"of another user, known to the stack", client(inStack, unseen, because(smc.DiagPeerNoSMC, 0), func(f *Facts) { f.UID = 1000 }), TCP, "", "peer-no-smc", "does not speak SMC", "smcr why :8080"},
	{"in another PID namespace", client(unseen), TCP, "", "", "another PID namespace", "outside of containers"},

	{"a listener that announces SMC", server(inStack), SMCR, "the user-space stack", "", "the listener announces SMC", nothing},
	{"one with clients over TCP only", server(inStack, func(f *Facts) { f.Clients.TCP = 3 }), SMCR, "the user-space stack", "", "announces SMC", "'smcr why :8080'"},
	{"one with clients of both", server(inStack, func(f *Facts) { f.Clients = Clients{1, 3} }), SMCR, "the user-space stack", "", "announces SMC", nothing},
	{"one of another user", server(inStack, unseen, func(f *Facts) { f.UID = 1000 }), SMCR, "the user-space stack", "", "announces SMC", nothing},
	{"one of a program with a stack", server(inStack, func(f *Facts) { f.Process.Attached, f.Process.IsStack = false, true }), SMCR, "the user-space stack", "", "stack of its own", nothing},
	{"one of the kernel", server(inKernel), SMCR, "the kernel", "", "AF_SMC", nothing},
	{"one of the kernel that is TCP", server(inKernel, because(smc.DiagNoSMCDev, 0), func(f *Facts) { f.Conn.Mode = nl.ModeTCP }), TCP, "", "no-smc-device", "no SMC device", "'smcr device list'"},
	{"a plain listener", server(), TCP, "", notRun, "was not started under", "Start it again with 'smcr run -- curl ...'."},
	{"a listener for this machine", server(func(f *Facts) { f.Conn.Local = netip.MustParseAddrPort("127.0.0.1:8080") }), TCP, "", "local", "only at an address of this machine", nothing},
}

// TestLosing: what to do about packets that are lost is said where it is known that they are.
func TestLosing(t *testing.T) {
	for _, tt := range []struct {
		sent, resent uint64
		link         uint8
		time         time.Duration
		want         bool
	}{
		{100e6, 2, 0, time.Second, false},
		{100e3, 2, 0, time.Second, false},
		{100e3, 3, 0, time.Second, true},
		{400e3, 3, 0, time.Second, false},
		{100e6, 12, 0, time.Second, true},
		{100e6, 12, 0, 5 * time.Second, false},
		{100e3, 3, 1, time.Second, false}, // of the link, not of the connection
		{0, 12, 1, time.Second, true},
		{0, 12, 1, 0, false},
	} {
		f := client(inStack, because(smc.DiagLocal, 0), func(f *Facts) {
			f.Traffic = &Traffic{NewSent: tt.sent, Time: tt.time}
			f.Resent = &Resent{N: 1000, New: tt.resent, Link: tt.link, Time: tt.time}
		})
		if v := Decide(f); strings.HasPrefix(v.Advice, "Packets are lost") != tt.want || v.Advice != nothing != tt.want {
			t.Errorf("%+v: %s", tt, v.Advice)
		}
	}
	f := client(func(f *Facts) { f.Resent = &Resent{New: 99, Time: time.Second} })
	if v := Decide(f); !strings.Contains(v.Advice, "'smcr run -- curl ...'") || !strings.HasSuffix(v.Advice, losing) {
		t.Errorf("both: %s", v.Advice)
	}
	if v := Decide(client(inStack, overSMC)); v.Advice != nothing+slower {
		t.Errorf("software RoCE: %s", v.Advice)
	}
}

func TestDecide(t *testing.T) {
	for _, c := range cases {
		v := Decide(c.f)
		if v.Carrier != c.carrier || v.Over != c.over || v.Reason != c.reason || !strings.Contains(v.Why, c.why) || !strings.Contains(v.Advice, c.advice) {
			t.Errorf("%s: %+v", c.name, v)
		}
		if v.Why == "" || strings.HasSuffix(v.Why, ".") || !strings.HasSuffix(v.Advice, ".") {
			t.Errorf("%s: why %q, advice %q", c.name, v.Why, v.Advice)
		}
		if _, ok := reasons.Named(v.Reason); v.Reason != "" && !ok {
			t.Errorf("%s: no reason %s", c.name, v.Reason)
		}
	}
}

// TestOurs: there is no advice about the processes of smcr itself, and a socket that no stack knows is said to be one of them.
func TestOurs(t *testing.T) {
	for _, c := range cases {
		if c.f.Process == nil {
			continue
		}
		f, p := *c.f, *c.f.Process
		p.Part, p.Unit = "smcr exporter", "smcr-exporter.service"
		f.Process = &p
		v := Decide(&f)
		if v.Carrier != c.carrier || v.Advice != nothing {
			t.Errorf("%s: %+v", c.name, v)
		}
		if f.Stack == "" && !p.IsStack && v.Why != "it belongs to smcr itself: 'smcr exporter'" {
			t.Errorf("%s: %+v", c.name, v)
		}
		if text := processText(&f); !strings.Contains(text, ", smcr-exporter.service") || !strings.HasSuffix(text, ", a part of smcr") {
			t.Errorf("%s: %s", c.name, text)
		}
	}
}

// TestEachReason: each reason that a stack can give leads to advice.
func TestEachReason(t *testing.T) {
	for _, r := range reasons.All() {
		if r.Code == 0 {
			continue
		}
		v := Decide(client(inStack, because(r.Code, 0)))
		if v.Reason != r.Name || v.Advice == "" || v.Code != r.Code {
			t.Errorf("%s: %+v", r.Name, v)
		}
	}
}

// shown are the facts of the golden files.
func shown() (all []*Facts) {
	measured := func(f *Facts) {
		f.Traffic = &Traffic{Sent: 3 << 20, Received: 5000, Time: 2 * time.Second, NewSent: 1 << 20, NewReceived: 300}
		f.Resent = &Resent{N: 3, New: 1, Time: 2 * time.Second}
	}
	all = append(all,
		server(inStack, func(f *Facts) {
			f.Clients = Clients{1, 3}
			f.More = 4
			f.Process.Unit, f.Process.Run = "nginx.service", false
		}),
		client(inStack, overSMC, measured, func(f *Facts) { f.Resent.Device = "soft-eth0"; f.Resent.N = 1; f.Conn.State = smc.StatePeerCloseWait1 }),
		client(inKernel, overSMC, func(f *Facts) { f.Resent = &Resent{Device: "mlx5_0"} }),
		client(inStack, because(smc.DiagPeerDeclined, smc.DiagNoSMCRDev), func(f *Facts) { f.Traffic = &Traffic{Sent: 1, Received: 2} }),
		client(unseen, func(f *Facts) { f.UID = 1000; f.Conn.Inode = 9 }),
		client(unseen, accepted, inKernel, because(smc.DiagPeerNoSMC, 0)),
		client(func(f *Facts) { f.Process.Command = "a\x1b[31mb" }),
	)
	for i := range 4 {
		all = append(all, client(inStack, accepted, because(smc.DiagPeerNoSMC, 0), measured, func(f *Facts) {
			f.Conn.Local, f.Conn.Remote = f.Conn.Remote, netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), uint16(40001+i))
		}))
	}
	return all
}

func TestGolden(t *testing.T) {
	var b bytes.Buffer
	rows := []socketJSON{}
	for _, f := range shown() {
		rows = append(rows, newSocketJSON(f))
	}
	if err := output.JSON(&b, rows); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"text": report(shown(), false), "all": report(shown(), true), "json": b.String()} {
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
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
