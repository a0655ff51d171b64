// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/smcrd"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the commands print to testdata")

// A world has the stacks that the commands of a test find.
type world struct {
	t       *testing.T
	stacks  nl.Multi
	dialErr error
}

// newWorld returns a world with one user-space stack, behind a real server and
// client, in the sample state.
func newWorld(t *testing.T) (*world, *nltest.Fake) {
	t.Helper()
	// The resets of this machine must not change the results.
	t.Setenv(smcrd.CacheEnv, filepath.Join(t.TempDir(), "stats"))
	fake := nltest.NewFake(nltest.SampleState())
	fake.SetNetDevs("lo", "eth0", "eth1", "eth2")
	return &world{t: t, stacks: nl.Multi{stack(t, "user", fake)}}, fake
}

// stack serves ctl and returns a client of the server.
func stack(t *testing.T, name string, ctl nl.Control) nl.Backend {
	t.Helper()
	address := fmt.Sprintf("@smcr-test-%d/%s/%s", os.Getpid(), t.Name(), name)
	l, err := nl.ListenUnix(address)
	if err != nil {
		t.Fatal(err)
	}
	s := nl.NewServer(ctl, nl.ServerConfig{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	c, err := nl.DialUnix(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
		<-done
	})
	return nl.Backend{Name: name, Control: keepOpen{c}}
}

// keepOpen hides the method Close of a Control, so that it can be used after the end of a
// command.
type keepOpen struct{ nl.Control }

func (keepOpen) Close() error { return nil }

// run runs a command line and returns its exit status and what it printed.
func (w *world) run(args ...string) (status int, stdout, stderr string) {
	w.t.Helper()
	return w.runInput("", args...)
}

// runInput is run with text on standard input.
func (w *world) runInput(input string, args ...string) (status int, stdout, stderr string) {
	w.t.Helper()
	streams, in, out, errOut := cmdutil.MemoryStreams()
	in.WriteString(input)
	status = Main(w.t.Context(), w.factory(streams), args)
	return status, out.String(), errOut.String()
}

// factory returns the Factory of the program in the world.
func (w *world) factory(streams *cmdutil.IOStreams) *cmdutil.Factory {
	return &cmdutil.Factory{
		IO: streams, Version: "1.2.3", Backend: "auto",
		NetDev: func(i uint32) string { return map[uint32]string{2: "eth0", 3: "eth1", 4: "eth2"}[i] },
		Dial: func(ctx context.Context, backend string) (nl.Multi, error) {
			if backend != "auto" && (backend != "user" || len(w.stacks) != 1) {
				return cmdutil.Dial(ctx, backend)
			}
			return w.stacks, w.dialErr
		},
	}
}

// TestGolden compares what commands print with the files in testdata.
func TestGolden(t *testing.T) {
	w, fake := newWorld(t)
	for _, p := range []nl.PNET{{ID: "NET1", NetDev: "eth0"}, {ID: "NET1", IBDev: "srx_eth0", IBPort: 1}} {
		if err := fake.AddPNET(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for _, noun := range []string{"linkgroup list", "link list", "device list", "connection list", "connection list --all"} {
		lines = append(lines, noun, noun+" -o wide", noun+" --output json")
	}
	lines = append(lines,
		"topology", "topology -o dot", "topology -o svg", "topology -o json --max-linkgroups 1", "linkgroup show", "info", "info -o json", "stats show", "stats show -d", "stats show -o json",
		"pnet list", "pnet list -o json", "ueid list", "ueid list -o json", "--version", "--help", "pnet --help", "linkgroup list --help",
	)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			w := &world{t: t, stacks: w.stacks}
			status, out, errOut := w.run(strings.Fields(line)...)
			if status != 0 || errOut != "" {
				t.Fatalf("exit status %d, %s", status, errOut)
			}
			golden(t, strings.NewReplacer(" ", "_", "-", "").Replace(line), out)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
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
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// TestNoGroup checks that it is said which of two objects does not exist.
func TestNoGroup(t *testing.T) {
	w := &world{t: t, stacks: nl.Multi{stack(t, "user", nltest.NewFake(nltest.State{LinkGroups: []nl.LinkGroup{{ID: 0x100}}}))}}
	for line, want := range map[string]string{
		"linkgroup del 999": "smcr: no link group 00000999: see 'smcr linkgroup list'\n",
		"link del 999 1":    "smcr: no link group 00000999: see 'smcr linkgroup list'\n",
		"link del 100 7":    "smcr: link group 00000100 has no link 7: see 'smcr link list'\n",
	} {
		if status, _, errOut := w.run(strings.Fields(line)...); status != 3 || errOut != want {
			t.Errorf("%s: %d, %q, want %q", line, status, errOut, want)
		}
	}
}

// TestEmpty checks that an empty list is no error and has its header.
func TestEmpty(t *testing.T) {
	w := &world{t: t, stacks: nl.Multi{stack(t, "user", nltest.NewFake(nltest.State{}))}}
	for noun, header := range map[string]string{
		"linkgroup":  "LG-ID  LG-Role  LG-Type  VLAN  #Conns  PNET-ID  Stack\n",
		"link":       "LG-ID  LG-Role  LG-Type  Link  Net-Dev  IB-Dev  IB-P  Link-State  #Conns  Resent  Stack\n",
		"device":     "Net-Dev  IB-Dev  IB-P  IB-State  Type  Crit  #Links  PNET-ID  Stack\n",
		"connection": "State  Local-Address  Peer-Address  Mode  LG-ID  Process  Reason  Stack\n",
		"pnet":       "PNET-ID  Net-Dev  IB-Dev  IB-P  Stack\n",
		"ueid":       "UEID  Stack\n",
	} {
		if status, out, errOut := w.run(noun, "list"); status != 0 || out != header || errOut != "" {
			t.Errorf("%s list: %d, %q, %q", noun, status, out, errOut)
		}
		if status, out, errOut := w.run(noun, "list", "-o", "json"); status != 0 || out != "[]\n" || errOut != "" {
			t.Errorf("%s list -o json: %d, %q, %q", noun, status, out, errOut)
		}
	}
}

// TestErrors checks the messages and exit statuses of wrong command lines, which must
// change nothing.
func TestErrors(t *testing.T) {
	w, fake := newWorld(t)
	if err := fake.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "eth0"}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		line   string
		status int
		text   string
	}{
		{"frobnicate", 2, `unknown command "frobnicate" for "smcr": see 'smcr --help'`},
		{"linkgroup frobnicate", 2, `unknown command "frobnicate" for "smcr linkgroup": see 'smcr linkgroup --help'`},
		{"linkgroup list --no-such-flag", 2, `unknown flag: --no-such-flag: see 'smcr linkgroup list --help'`},
		{"linkgroup list --rol client", 2, `unknown flag: --rol: did you mean "--role"?`},
		{"connection list --lnkgroup 100", 2, `unknown flag: --lnkgroup: did you mean "--linkgroup"?`},
		{"run --mdoe user -- true", 2, `unknown flag: --mdoe: did you mean "--mode"?`},
		{"verbs perf write-bw --sise 1", 2, `unknown flag: --sise: did you mean "--size"?`},
		{"serve --log-levle debug", 2, `unknown flag: --log-levle: did you mean "--log-level"?`},
		{"linkgroup list -o jsno", 2, `invalid argument "jsno" for "-o, --output" flag: choose one of table, wide, json: did you mean "json"?`},
		{"linkgroup list --role clinet", 2, `invalid argument "clinet" for "--role" flag: choose one of client, server: did you mean "client"?`},
		{"connection list --mode smrc", 2, `invalid argument "smrc" for "--mode" flag: choose one of SMCR, SMCD, TCP: did you mean "SMCR"?`},
		{"device list --state actve", 2, `invalid argument "actve" for "--state" flag: choose one of ACTIVE, INACTIVE: did you mean "ACTIVE"?`},
		{"run --mode kernle -- true", 2, `--mode "kernle": did you mean "kernel"?`},
		{"serve --log-level wran", 2, `--log-level "wran": did you mean "warn"?`},
		{"--backend kernle info", 2, `unknown backend "kernle": did you mean "kernel"?`},
		{"pnet list NTE1", 3, `no pnetid "NTE1": did you mean "NET1"?`},
		{"pnet del NTE1", 3, `no pnetid "NTE1": did you mean "NET1"?`},
		{"ueid del SMCV2-EXMAPLE-UEID", 3, `no enterprise ID "SMCV2-EXMAPLE-UEID": did you mean "SMCV2-EXAMPLE-UEID"?`},
		{"ueid list SMCV2-EXMAPLE-UEID", 3, `no enterprise ID "SMCV2-EXMAPLE-UEID": did you mean "SMCV2-EXAMPLE-UEID"?`},
		{"device list srx_eht0", 3, `no RoCE device "srx_eht0": did you mean "srx_eth0"?`},
		{"linkgroup list 10", 3, `no link group 00000010: did you mean "100"?`},
		{"verbs perf wirte-bw", 2, `unknown command "wirte-bw" for "smcr verbs perf": did you mean "write-bw"?`},
		{"verbs prf", 2, `unknown command "prf" for "smcr verbs": did you mean "perf"?`},
		{"linkgroup list extra", 2, `invalid link group "extra": an identifier has 1 to 8 hexadecimal digits`},
		{"info extra", 2, `unknown command "extra" for "smcr info": see 'smcr info --help'`},
		{"linkgroup list -o xml", 2, `invalid argument "xml" for "-o, --output" flag: choose one of table, wide, json`},
		{"--backend moon info", 2, `unknown backend "moon": must be auto, kernel, user, ending-N or unix:PATH`},
		{"--backend unix: info", 2, `unknown backend "unix:": must be auto, kernel, user, ending-N or unix:PATH`},
		{"--backend unix:/no/such.sock info", 5, `no smcr stack listens at /no/such.sock`},
		{"pnet add", 2, `smcr pnet add: PNETID is required`},
		{"pnet add NET2", 2, `name a network device with -I or a RoCE device with -D`},
		{"pnet add NET2 NET3 -I eth1", 2, `smcr pnet add: expected one PNETID, unexpected argument "NET3"`},
		{"check", 2, `smcr check: HOST is required`},
		{"check hostA hostB", 2, `smcr check: expected one HOST, unexpected argument "hostB"`},
		{"pnet add NET2 -I eth1 -P 1", 2, `-P needs -D: name the RoCE device of the port`},
		{"pnet add NET2 -D rxe0 -P 3", 2, `invalid port 3: a RoCE port is 1 or 2`},
		{"pnet add ABCDEFGHIJKLMNOPQ -I eth1", 2, `invalid pnetid "ABCDEFGHIJKLMNOPQ": a pnetid has at most 16 characters, not 17`},
		{"pnet add A-B -I eth1", 2, `invalid pnetid "A-B": a pnetid has only letters and digits, not '-'`},
		{"pnet add NET2 -I foo", 3, `no netdev "foo": see 'ip link'`},
		{"pnet add NET2 -I eth0", 1, `eth0 already has a pnetid: see 'smcr pnet list'`},
		{"pnet del NOSUCH", 3, `no pnetid "NOSUCH": see 'smcr pnet list'`},
		{"ueid add lower", 2, `invalid enterprise ID "lower": unsupported character 'l': use A-Z, 0-9, '.' and '-'`},
		{"ueid add SMCV2-EXAMPLE-UEID", 1, `enterprise ID "SMCV2-EXAMPLE-UEID" is already defined`},
		{"ueid del NOSUCH", 3, `no enterprise ID "NOSUCH": see 'smcr ueid list'`},
	} {
		t.Run(test.line, func(t *testing.T) {
			w := &world{t: t, stacks: w.stacks}
			status, out, errOut := w.run(strings.Fields(test.line)...)
			want := test.text + "\n"
			if !strings.HasPrefix(want, "smcr ") {
				want = "smcr: " + want
			}
			if status != test.status || out != "" || errOut != want {
				t.Errorf("exit status %d, want %d; printed %q and %q, want %q", status, test.status, out, errOut, test.text)
			}
		})
	}
	if s, err := fake.PNETs(t.Context()); err != nil || len(s) != 1 {
		t.Errorf("the table changed: %v, %v", s, err)
	}
	if s, err := fake.UEIDs(t.Context()); err != nil || len(s) != 1 {
		t.Errorf("the enterprise IDs changed: %v, %v", s, err)
	}
}

// TestStackErrors checks the messages about errors that a stack returns.
func TestStackErrors(t *testing.T) {
	w, fake := newWorld(t)
	for _, test := range []struct {
		err    error
		line   string
		status int
		text   string
	}{
		{os.ErrPermission, "pnet flush", 4, "operation not permitted: only root and the user who runs the smcr stack may change it"},
		{nl.ErrNotSupported, "linkgroup list", 1, "list link groups: not supported by the "},
		{errors.New("the roof is on fire"), "stats show", 1, "the roof is on fire: input/output error"},
	} {
		fake.SetError(test.err)
		status, out, errOut := w.run(strings.Fields(test.line)...)
		if status != test.status || out != "" || !strings.HasPrefix(errOut, "smcr: ") || !strings.Contains(errOut, test.text) {
			t.Errorf("%v: exit status %d, want %d; printed %q and %q", test.err, status, test.status, out, errOut)
		}
	}
	w.dialErr = fmt.Errorf("%w: nobody", nl.ErrNoBackend)
	if status, _, errOut := w.run("info"); status != 5 || errOut == "" {
		t.Errorf("no stack: %d, %q", status, errOut)
	}
}

// TestChange changes tables and reads them back.
func TestChange(t *testing.T) {
	w, fake := newWorld(t)
	for _, line := range []string{
		"pnet add net1 -I eth0", "pnet add NET1 -D srx_eth0", "pnet add NET2 --netdev eth1 --ibdev mlx5_0 --ibport 2",
		"pnet del net1", "ueid add A.B", "ueid del SMCV2-EXAMPLE-UEID",
	} {
		if status, out, errOut := w.run(strings.Fields(line)...); status != 0 || out != "" || errOut != "" {
			t.Errorf("%s: %d, %q, %q", line, status, out, errOut)
		}
	}
	pnets, _ := fake.PNETs(t.Context())
	want := []nl.PNET{{ID: "NET2", NetDev: "eth1"}, {ID: "NET2", IBDev: "mlx5_0", IBPort: 2}}
	if diff := cmp.Diff(want, pnets); diff != "" {
		t.Errorf("pnetids (-want +got):\n%s", diff)
	}
	eids, _ := fake.UEIDs(t.Context())
	if diff := cmp.Diff([]string{"A.B"}, eids); diff != "" {
		t.Errorf("enterprise IDs (-want +got):\n%s", diff)
	}
	w.run("pnet", "flush")
	w.run("ueid", "flush")
	pnets, _ = fake.PNETs(t.Context())
	eids, _ = fake.UEIDs(t.Context())
	if len(pnets) != 0 || len(eids) != 0 {
		t.Errorf("after flush: %v, %v", pnets, eids)
	}
}

// TestTwoStacks checks that rows name their stack, and that a change must name a stack
// too.
func TestTwoStacks(t *testing.T) {
	w, _ := newWorld(t)
	w.stacks = append(nl.Multi{stack(t, "kernel", nltest.NewFake(nltest.SampleState()))}, w.stacks...)
	_, out, _ := w.run("linkgroup", "list")
	golden(t, "two_stacks", out)
	status, _, errOut := w.run("pnet", "flush")
	if want := "smcr: there are several SMC stacks (kernel, user): choose one with --backend\n"; status != 2 || errOut != want {
		t.Errorf("pnet flush: %d, %q", status, errOut)
	}
}

// TestFallbacks checks how connections that are TCP are listed: those of the kernel,
// which come from sock_diag without their processes, and those of a user-space stack.
func TestFallbacks(t *testing.T) {
	at := netip.MustParseAddrPort
	rows := []nl.Connection{
		{State: smc.StateListen, Local: at("10.77.0.1:8081"), Inode: 20},
		{State: smc.StateActive, Mode: nl.ModeTCP, Local: at("10.77.0.1:40001"), Remote: at("10.77.0.2:80"), UID: 1000, Inode: 21, Fallback: nl.ConnFallback{Reason: 0x03010000}},
		{State: smc.StateActive, Mode: nl.ModeTCP, Local: at("10.77.0.1:40002"), Remote: at("10.77.0.2:80"), UID: 1000, Inode: 22, Fallback: nl.ConnFallback{Reason: 0x05000000, Peer: 0x03070000}},
		{State: smc.StateActive, Mode: nl.ModeTCP, Local: at("[fd00:77::1]:40003"), Remote: at("[fd00:77::2]:80"), Inode: 23, Fallback: nl.ConnFallback{Reason: 0x03030002}},
		{State: smc.StateInit, Mode: nl.ModeTCP, Local: at("10.77.0.1:40004"), Remote: at("10.77.0.3:80"), Inode: 24, Fallback: nl.ConnFallback{Reason: 0x030e0000}},
		{State: smc.StateActive, Mode: nl.ModeTCP, Local: at("10.77.0.1:40005"), Remote: at("10.77.0.2:80"), Inode: 25, Fallback: nl.ConnFallback{Reason: 0x12345678}},
	}
	state := nltest.State{Connections: slices.Clone(rows)}
	for i := range rows {
		rows[i].PID, rows[i].Command = 4711, "curl"
	}
	w := &world{t: t, stacks: nl.Multi{
		stack(t, "kernel", nltest.NewFake(state)), stack(t, "user", nltest.NewFake(nltest.State{Connections: rows})),
	}}
	for name, line := range map[string]string{"fallbacks": "connection list -a", "fallbacks_json": "connection list 22 23 -o json"} {
		status, out, errOut := w.run(strings.Fields(line)...)
		if status != 0 || errOut != "" {
			t.Errorf("%s: %d, %s", line, status, errOut)
		}
		golden(t, name, out)
	}
}

// TestStatsReset checks that a reset applies to all forms of output, but not to the
// absolute counters.
func TestStatsReset(t *testing.T) {
	w, fake := newWorld(t)
	all := func(args ...string) map[string]any {
		t.Helper()
		status, out, errOut := w.run(append([]string{"stats", "show", "-o", "json"}, args...)...)
		var rows []map[string]any
		if err := json.Unmarshal([]byte(out), &rows); status != 0 || err != nil || len(rows) != 1 {
			t.Fatalf("%d, %v, %s, %s", status, err, out, errOut)
		}
		return rows[0]
	}
	number := func(row map[string]any, keys ...string) float64 {
		t.Helper()
		for _, k := range keys[:len(keys)-1] {
			row = row[k].(map[string]any)
		}
		return row[keys[len(keys)-1]].(float64)
	}
	before := all()
	conns, bytes, fallbacks := number(before, "smcr", "connections"), number(before, "smcr", "tx", "bytes"), number(before, "fallbacks", "client")
	if conns == 0 || bytes == 0 || fallbacks == 0 {
		t.Fatalf("the sample has nothing to reset: %v", before)
	}
	if status, out, errOut := w.run("stats", "reset"); status != 0 || out != "" || errOut != "" {
		t.Fatalf("%d, %s, %s", status, out, errOut)
	}
	fake.SetStats(func(s *nl.Stats, f *nl.Fallbacks) { s.SMCR.TXBytes += 7 })
	now := all()
	if c, b, f := number(now, "smcr", "connections"), number(now, "smcr", "tx", "bytes"), number(now, "fallbacks", "client"); c != 0 || b != 7 || f != 0 {
		t.Errorf("after the reset: %v connections, %v bytes, %v fallbacks, want 0, 7, 0", c, b, f)
	}
	if r := now["fallbacks"].(map[string]any)["reasons"].([]any); len(r) != 0 {
		t.Errorf("reasons: %v", r)
	}
	if _, out, _ := w.run("stats", "show", "-d"); !strings.Contains(out, "SMC connections                         0") {
		t.Errorf("text after the reset:\n%s", out)
	}
	if abs := all("--absolute"); number(abs, "smcr", "connections") != conns || number(abs, "smcr", "tx", "bytes") != bytes+7 {
		t.Errorf("absolute: %v", abs)
	}
	// The reset does not apply to a stack that has started again.
	fake.SetStats(func(s *nl.Stats, f *nl.Fallbacks) { s.SMCR = stats.Tech{TXBytes: 5} })
	if b := number(all(), "smcr", "tx", "bytes"); b != 5 {
		t.Errorf("%v bytes of a new stack", b)
	}
}

// TestTree checks the form of all commands.
func TestTree(t *testing.T) {
	streams, _, _, _ := cmdutil.MemoryStreams()
	root := NewRoot(&cmdutil.Factory{IO: streams, Backend: "auto"})
	for _, c := range root.Commands() {
		for _, sub := range append(c.Commands(), c) {
			if sub.Short == "" || strings.HasSuffix(sub.Short, ".") {
				t.Errorf("%s: short text %q", sub.CommandPath(), sub.Short)
			}
			if sub.RunE == nil || sub.Args == nil {
				t.Errorf("%s does not say which arguments it takes", sub.CommandPath())
			}
		}
	}
}
