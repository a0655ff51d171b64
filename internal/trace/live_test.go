// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack/wire"

	"github.com/google/go-cmp/cmp"
)

var (
	client4, server4 = netip.MustParseAddrPort("10.1.0.1:40000"), netip.MustParseAddrPort("10.1.0.2:80")
	client6, server6 = netip.MustParseAddrPort("[fd00::1]:40000"), netip.MustParseAddrPort("[fd00::2]:80")
	begun            = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
)

func encode(t *testing.T, m interface{ AppendBinary([]byte) ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sample returns the events of a connection, over IPv4 and RoCE version 2, and over IPv6
// and RoCE version 1.
func sample(t *testing.T) (events []nl.TraceEvent, conns []nl.TraceConn) {
	t.Helper()
	at := begun
	add := func(e nl.TraceEvent) {
		e.Time = at
		if e.Length == 0 {
			e.Length = uint32(len(e.Data))
		}
		at = at.Add(time.Millisecond)
		events = append(events, e)
	}
	for i, a := range [][2]netip.AddrPort{{client4, server4}, {client6, server6}} {
		clc := func(out bool, m wire.CLC) {
			add(nl.TraceEvent{Type: nl.TraceCLC, Out: out, Local: a[0], Remote: a[1], Data: encode(t, m)})
		}
		clc(true, wire.Proposal{PeerID: smc.PeerID{1}, Growth: make([]byte, wire.ProposalGrowthLinux)})
		clc(false, wire.Accept{FirstContact: true, Endpoint: wire.Endpoint{QPN: 0x22, AlertToken: 2, GID: a[1].Addr().As16()}})
		clc(true, wire.Confirm{FirstContact: true, Endpoint: wire.Endpoint{QPN: 0x11, AlertToken: 1, GID: a[0].Addr().As16()}})
		link := func(typ nl.TraceTypes, out bool, b []byte, length int) {
			add(nl.TraceEvent{
				Type: typ, Out: out, Group: 0x100, RoCE: uint8(2 - i), QPN: 0x11, PeerQPN: 0x22, Data: b, Length: uint32(length),
				Local: netip.AddrPortFrom(a[0].Addr(), 0), Remote: netip.AddrPortFrom(a[1].Addr(), 0),
			})
		}
		link(nl.TraceLLC, false, encode(t, wire.ConfirmLink{QPN: 0x22, LinkNum: 1, NoEyecatcher: true}), 0)
		link(nl.TraceCDC, true, encode(t, wire.CDC{Seq: 1, Token: 2}), 0)
		link(nl.TraceCDC, false, encode(t, wire.CDC{Seq: 1, Token: 9}), 0)
		write := make([]byte, header.BTHLen+header.RETHLen)
		header.BTH(write).Encode(&header.BTHFields{Opcode: header.WriteOnly, DestQP: 0x22, PSN: 7})
		link(nl.TraceRoCE, true, write, len(write)+1000)
	}
	conns = []nl.TraceConn{{
		Local: netip.MustParseAddrPort("10.1.0.1:50000"), Remote: server4, Role: smc.Client, Group: 0x100,
		GID: smc.GIDFromIPv4(client4.Addr()), PeerGID: smc.GIDFromIPv4(server4.Addr()), QPN: 0x11, PeerQPN: 0x22, Token: 9, PeerToken: 8,
	}}
	return events, conns
}

// liveRun runs the command with a stack.
func liveRun(t *testing.T, fake *nltest.Fake, args ...string) (out, errOut string, err error) {
	t.Helper()
	streams, _, sout, serr := cmdutil.MemoryStreams()
	f := &cmdutil.Factory{IO: streams, Version: "1.2.3", Backend: "auto", Dial: func(context.Context, string) (nl.Multi, error) {
		return nl.Multi{{Name: "kernel", Control: kernel{fake}}, {Name: "user", Control: noClose{fake}}}, nil
	}}
	cmd := NewCmd(f)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return sout.String(), serr.String(), err
}

// kernel is a Control without traces.
type kernel struct{ nl.Control }

func (kernel) Trace(context.Context, nl.TraceRequest) (nl.Trace, error) {
	return nl.Trace{}, &nl.OpError{Op: "trace", Backend: "kernel", Err: nl.ErrNotSupported}
}
func (kernel) Close() error { return nil }

// noClose is a Control that outlives a command.
type noClose struct{ nl.Control }

func (noClose) Close() error { return nil }

func TestLive(t *testing.T) {
	testkind.System(t)
	events, conns := sample(t)
	fake := nltest.NewFake(nltest.State{TraceEvents: events, TraceConns: conns})
	file := filepath.Join(t.TempDir(), "live.pcapng")
	out, errOut, err := liveRun(t, fake, "--type", "all", "-c", "20", "-o", "json", "--pcapng", file)
	if want := "smcr: tracing the user stack, interrupt to end\n"; err != nil || errOut != want {
		t.Fatalf("%v, %q, want %q", err, errOut, want)
	}
	var got []string
	for _, e := range parse(t, out) {
		if e.Fault != "" {
			t.Errorf("%+v", e)
		}
		got = append(got, strings.Join([]string{e.Type, e.Message, e.Source, e.Destination, e.SourceQPN, e.DestQPN, e.LinkGroup, e.Connection}, " "))
	}
	want := strings.Split(strings.TrimSpace(`
clc PROPOSAL 10.1.0.1:40000 10.1.0.2:80    10.1.0.1:40000-10.1.0.2:80
clc ACCEPT 10.1.0.2:80 10.1.0.1:40000    10.1.0.1:40000-10.1.0.2:80
clc CONFIRM 10.1.0.1:40000 10.1.0.2:80    10.1.0.1:40000-10.1.0.2:80
roce SEND Only 10.1.0.2 10.1.0.1 0x000022 0x000011 00000100 
llc CONFIRM LINK 10.1.0.2 10.1.0.1 0x000022 0x000011 00000100 
roce SEND Only 10.1.0.1 10.1.0.2 0x000011 0x000022 00000100 
cdc CDC 10.1.0.1 10.1.0.2 0x000011 0x000022 00000100 10.1.0.1:40000-10.1.0.2:80
roce SEND Only 10.1.0.2 10.1.0.1 0x000022 0x000011 00000100 
cdc CDC 10.1.0.2 10.1.0.1 0x000022 0x000011 00000100 10.1.0.1:50000-10.1.0.2:80
roce RDMA WRITE Only 10.1.0.1 10.1.0.2 0x000011 0x000022 00000100 
clc PROPOSAL [fd00::1]:40000 [fd00::2]:80    [fd00::1]:40000-[fd00::2]:80
clc ACCEPT [fd00::2]:80 [fd00::1]:40000    [fd00::1]:40000-[fd00::2]:80
clc CONFIRM [fd00::1]:40000 [fd00::2]:80    [fd00::1]:40000-[fd00::2]:80
roce SEND Only fd00::2 fd00::1 0x000022 0x000011 00000100 
llc CONFIRM LINK fd00::2 fd00::1 0x000022 0x000011 00000100 
roce SEND Only fd00::1 fd00::2 0x000011 0x000022 00000100 
cdc CDC fd00::1 fd00::2 0x000011 0x000022 00000100 [fd00::1]:40000-[fd00::2]:80
roce SEND Only fd00::2 fd00::1 0x000022 0x000011 00000100 
cdc CDC fd00::2 fd00::1 0x000022 0x000011 00000100 10.1.0.1:50000-10.1.0.2:80
roce RDMA WRITE Only fd00::1 fd00::2 0x000011 0x000022 00000100 `+"\n"), "\n")
	for i := range want {
		want[i] = strings.TrimRight(want[i], " ")
	}
	for i := range got {
		got[i] = strings.TrimRight(got[i], " ")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The trace has ended with the command.
	if _, err := fake.Trace(t.Context(), nl.TraceRequest{ID: 1}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("trace after the end: %v", err)
	}

	// Wireshark reads the file: each message, no fault, right checksums.
	var rows []string
	for _, r := range tshark(t, file, "frame", "smc.clc_msg", "smc.llc_msg", "infiniband.bth.opcode", "ip.checksum.status", "tcp.checksum.status",
		"tcp.seq_raw", "tcp.ack_raw", "_ws.malformed", "tcp.analysis.flags") {
		rows = append(rows, strings.TrimRight(strings.Join(r, " "), " "))
	}
	// A checksum with status 1 is right.
	wantRows := strings.Split("1   1 1 1 1|2   1 1 1 93|3   1 1 93 69| 0x01 4 1| 0xfe 4 1| 0xfe 4 1|  10 1|"+
		"1    1 1 1|2    1 1 93|3    1 93 69| 0x01 4| 0xfe 4| 0xfe 4|  10", "|")
	if d := cmp.Diff(wantRows, rows); d != "" {
		t.Error(d)
	}
}

// TestLiveText shows lines, and filters of the client.
func TestLiveText(t *testing.T) {
	events, conns := sample(t)
	fake := nltest.NewFake(nltest.State{TraceEvents: events, TraceConns: conns})
	out, _, err := liveRun(t, fake, "--conn", "10.1.0.1:50000", "-c", "1", "--linkgroup", "0x100", "-t", "cdc")
	want := "04:05.003500 CDC  10.1.0.2 > 10.1.0.1 group 00000100 qp 0x000022 > 0x000011: seq=1 token=0x00000009 prod=0:0 cons=0:0 conn=10.1.0.1:50000-10.1.0.2:80\n"
	want = strings.Replace(want, "05.003500", "05.005006", 1)
	if err != nil || len(out) < 3 || out[3:] != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}

// TestLiveErrors has stacks that do not trace.
func TestLiveErrors(t *testing.T) {
	for _, test := range []struct {
		args string
		err  error
		text string
		exit int
	}{
		{"", &nl.OpError{Op: "trace", Backend: "user", Err: syscall.EPERM}, "operation not permitted: only root and the user who runs the smcr stack may trace it", cmdutil.ExitPermission},
		{"", &nl.OpError{Op: "trace", Backend: "user", Err: nl.ErrNotSupported}, "only the stack in user space can be traced: capture packets with tcpdump, and show them with 'smcr trace -r FILE'", cmdutil.ExitError},
		{"--linkgroup xyz", nil, `invalid link group "xyz": an identifier has 1 to 8 hexadecimal digits`, cmdutil.ExitUsage},
		{"--linkgroup 1 -r x", nil, "--linkgroup needs the stack: a capture file does not have the IDs of link groups", cmdutil.ExitUsage},
		{"-c 0", nil, "invalid count 0: must be at least 1", cmdutil.ExitUsage},
	} {
		fake := nltest.NewFake(nltest.State{})
		fake.SetError(test.err)
		out, _, err := liveRun(t, fake, strings.Fields(test.args)...)
		if err == nil || cmdutil.Message(err) != test.text || cmdutil.ExitCode(err) != test.exit || out != "" {
			t.Errorf("%s: %v (status %d), %q", test.args, err, cmdutil.ExitCode(err), out)
		}
	}
}
