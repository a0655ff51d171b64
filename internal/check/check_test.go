// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"smcr/internal/cmdutil"
	"smcr/internal/reasons"
	"smcr/internal/testing/cmdtest"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
)

// world is an environment without a network.
type world struct {
	addrs   []netip.Addr
	routes  map[string]route // by address; other addresses have no route
	out     outcome
	err     error
	gids    []string
	started nl.Multi // what Start adds to the stacks
	probed  []netip.AddrPort
	noEcho  bool // the host does not answer ICMP echo
}

func (w *world) Resolve(_ context.Context, host string) ([]netip.Addr, error) {
	if w.addrs == nil {
		return nil, errors.New("no such host")
	}
	return w.addrs, nil
}

func (w *world) Port(_ context.Context, port string) (uint16, error) {
	var n uint16
	if _, err := fmt.Sscan(port, &n); err != nil {
		return 0, err
	}
	return n, nil
}

func (w *world) Route(remote netip.Addr) (route, error) {
	r, ok := w.routes[remote.String()]
	if !ok {
		return r, syscall.ENETUNREACH
	}
	return r, nil
}

func (w *world) GIDTypes(string, uint8) []string { return w.gids }

func (w *world) Start(context.Context) (nl.Multi, error) {
	if w.started == nil {
		return nil, nl.ErrNoBackend
	}
	return w.started, nil
}

func (w *world) Answers(context.Context, netip.Addr, string) (string, bool) {
	return "ICMP echo", !w.noEcho
}

func (w *world) Probe(_ context.Context, _ nl.Backend, remote netip.AddrPort) (outcome, error) {
	w.probed = append(w.probed, remote)
	return w.out, w.err
}

// direct is the route to a peer on the same network.
var direct = route{NetDev: "eth0", Local: netip.MustParsePrefix("10.1.0.1/24")}

func newWorld() *world {
	return &world{
		addrs:  []netip.Addr{netip.MustParseAddr("10.1.0.2")},
		routes: map[string]route{"10.1.0.2": direct},
		out:    outcome{Announced: true, SMC: true, Took: 420 * time.Microsecond, LinkGroup: 0x100, IBDev: "soft-eth0"},
	}
}

// device returns a device with a port on a netdev of index 2 (eth0) or 3 (eth1).
func device(name string, netdev uint32, active bool) nl.Device {
	return nl.Device{Name: name, Ports: []nl.Port{{NetDev: netdev, Active: active, Valid: true}}}
}

// userState is the state of a user-space stack that speaks version 1.
func userState(devices ...nl.Device) nltest.State {
	return nltest.State{SysInfo: nl.SysInfo{Version: 1, Stack: "smcr", PID: 42}, Devices: devices}
}

func runCheck(t *testing.T, w *world, m nl.Multi, args ...string) (status int, stdout string, err error) {
	t.Helper()
	streams, _, out, _ := cmdutil.MemoryStreams()
	f := &cmdutil.Factory{
		IO: streams, Backend: "auto",
		NetDev: func(i uint32) string { return map[uint32]string{2: "eth0", 3: "eth1"}[i] },
		Dial: func(context.Context, string) (nl.Multi, error) {
			if m == nil {
				return nil, nl.ErrNoBackend
			}
			return m, nil
		},
	}
	cmd := newCmd(f, w, nil)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return cmdutil.ExitCode(err), out.String(), err
}

// TestSteps checks the lines of a check, from the first line that differs between the
// cases.
func TestSteps(t *testing.T) {
	eth0 := device("soft-eth0", 2, true)
	for _, test := range []struct {
		name   string
		state  nltest.State
		pnets  []nl.PNET
		change func(*world)
		args   string
		status int
		want   string
	}{
		{"it works", userState(eth0), nil, nil, "10.1.0.2:80", 0, `
ok       stack   smcr in user space, process 42, SMC version 1
skipped  eid     version 1 of SMC needs no enterprise ID
ok       route   eth0, local address 10.1.0.1/24: same subnet
ok       device  soft-eth0 port 1, active, on the netdev of the route
ok       tcp     connected to 10.1.0.2:80 in 400µs
ok       option  the peer announced SMC in the TCP handshake
ok       clc     SMC-R, link group 00000100 over soft-eth0
`},
		{"without port", userState(eth0), nil, nil, "host-b", 0, `
ok       name    host-b is 10.1.0.2
skipped  eid     version 1 of SMC needs no enterprise ID
ok       route   eth0, local address 10.1.0.1/24: same subnet
ok       device  soft-eth0 port 1, active, on the netdev of the route
ok       host    10.1.0.2 answers: ICMP echo
skipped  tcp     no port given: the peer was not asked whether it uses SMC-R
                 -> give the port of a server there that uses it: smcr check host-b:PORT
`},
		{"a silent host", userState(eth0), nil, func(w *world) { w.noEcho = true }, "10.1.0.2", 1, `
FAILED   host    10.1.0.2 does not answer
                 -> check 'ip neigh' and the firewalls on the path; if the host runs a server, give its port: smcr check 10.1.0.2:PORT
`},
		{"the address with a direct way", userState(eth0), nil, func(w *world) {
			w.addrs = append([]netip.Addr{netip.MustParseAddr("192.0.2.1")}, w.addrs...)
		}, "host-b", 0, "ok       name    host-b is 10.1.0.2\n"},
		{"no address", userState(), nil, func(w *world) { w.addrs = nil }, "host-b", 1, `
FAILED   name    host-b has no address: no such host
                 -> use the address, or see 'getent hosts host-b'
`},
		{"no route", userState(eth0), nil, func(w *world) { w.routes = nil }, "10.1.0.2:80", 1, `
FAILED   route   no route to 10.1.0.2: network is unreachable
                 -> see 'ip route get 10.1.0.2'
skipped  device  depends on the failed step
skipped  tcp     depends on the failed step
`},
		{"this host", userState(eth0), nil, func(w *world) { w.routes["10.1.0.2"] = route{NetDev: "lo", IsLocal: true} }, "10.1.0.2:80", 0,
			"ok       route   10.1.0.2 is this machine: programs use TCP between their own sockets, see 'smcr explain local'\n"},
		{"another network namespace of this machine", userState(eth0), nil, func(w *world) {
			w.out = outcome{Reason: smc.DiagLocal}
		}, "10.1.0.2:80", 0, "ok       tcp     the peer is on this machine: programs use TCP between their own sockets, see 'smcr explain local'\n"},
		{"a router", userState(eth0), nil, func(w *world) {
			w.routes["10.1.0.2"] = route{NetDev: "eth0", Gateway: netip.MustParseAddr("10.9.0.1")}
		}, "10.1.0.2:80", 1, "FAILED   route   10.1.0.2 is behind router 10.9.0.1: version 1 of SMC-R needs it in the same subnet\n"},
		{"a router and version 2", nltest.State{
			SysInfo: nl.SysInfo{Version: 2, Release: 1, SMCRv2: true}, UEIDs: []string{"A.B"}, Devices: []nl.Device{eth0},
		}, nil, func(w *world) {
			w.routes["10.1.0.2"] = route{NetDev: "eth0", Gateway: netip.MustParseAddr("10.9.0.1")}
		}, "10.1.0.2:80", 0, `
ok       stack   user, SMC version 2.1
ok       eid     A.B: the peer needs one of them for version 2
ok       route   eth0, via router 10.9.0.1: only version 2 of SMC-R works across routers
`},
		{"no enterprise ID", nltest.State{SysInfo: nl.SysInfo{Version: 2, SMCRv2: true}, Devices: []nl.Device{eth0}}, nil, nil, "10.1.0.2:80", 0,
			"ok       eid     none: version 1 of SMC only; for version 2 define one on both hosts with 'smcr ueid add'\n"},
		{"RoCE version 2 only", nltest.State{SysInfo: nl.SysInfo{Version: 2, SMCRv2: true}, Devices: []nl.Device{device("rxe0", 2, true)}}, nil,
			func(w *world) { w.gids = []string{"RoCE v2"} }, "10.1.0.2:80", 1, `
FAILED   device  rxe0 port 1 has only RoCE version 2 GIDs, which need SMC version 2
                 -> define the same enterprise ID on both hosts: smcr ueid add EID
`},
		{"both versions of RoCE", nltest.State{SysInfo: nl.SysInfo{Version: 2, SMCRv2: true}, Devices: []nl.Device{device("mlx5_0", 2, true)}}, nil,
			func(w *world) { w.gids = []string{"IB/RoCE v1", "RoCE v2"} }, "10.1.0.2:80", 0, "ok       device  mlx5_0 port 1, active, on the netdev of the route\n"},
		{"no device", userState(), nil, nil, "10.1.0.2:80", 1, `
FAILED   device  the stack has no RoCE device
                 -> load the driver of the RNIC, or see 'smcr rnics'
`},
		{"device elsewhere", userState(device("mlx5_0", 3, true)), nil, nil, "10.1.0.2:80", 1, `
FAILED   device  no RoCE device on netdev eth0, and no pnetid selects another one
                 -> assign one pnetid to both: smcr pnet add NET1 -I eth0 -D IBDEV; see 'smcr device list' for the names
                    see 'smcr explain device-elsewhere'
`},
		{"port down", userState(device("soft-eth0", 2, false)), nil, nil, "10.1.0.2:80", 1, `
FAILED   device  soft-eth0 port 1 is not active
                 -> see 'ip link show eth0'
                    see 'smcr explain device-down'
`},
		{"no device with the pnetid", userState(device("mlx5_0", 3, true)), []nl.PNET{{ID: "NET1", NetDev: "eth0"}}, nil, "10.1.0.2:80", 1, `
FAILED   device  no RoCE device has pnetid NET1 of netdev eth0
                 -> assign it to one: smcr pnet add NET1 -D IBDEV; see 'smcr device list' for the names
`},
		{"by pnetid, over a VLAN", userState(device("mlx5_0", 3, true)), []nl.PNET{{ID: "NET1", NetDev: "eth0", IBDev: "mlx5_0"}}, func(w *world) {
			w.routes["10.1.0.2"] = route{NetDev: "eth0.7", Lower: []string{"eth0"}, Local: direct.Local}
		}, "10.1.0.2:80", 0, "ok       device  mlx5_0 port 1, active, pnetid NET1 as netdev eth0.7\n"},
		{"refused", userState(eth0), nil, func(w *world) { w.out = outcome{TCPError: syscall.ECONNREFUSED} }, "10.1.0.2:80", 1, `
FAILED   tcp     no connection to 10.1.0.2:80: connection refused
                 -> Start the server on the peer, under 'smcr run' or smc_run.
                    see 'smcr explain server-refused'
`},
		{"silent", userState(eth0), nil, func(w *world) { w.out = outcome{TCPError: context.DeadlineExceeded} }, "10.1.0.2:80", 1, `
FAILED   tcp     no connection to 10.1.0.2:80: context deadline exceeded
                 -> Check the address, 'ip neigh' and the firewalls on the path.
                    see 'smcr explain tcp-fails'
`},
		{"plain TCP peer", userState(eth0), nil, func(w *world) { w.out.Announced, w.out.SMC = false, false }, "10.1.0.2:80", 1, `
ok       tcp     connected to 10.1.0.2:80 in 400µs
FAILED   option  the peer does not speak SMC: it did not announce it in the TCP handshake
                 -> On the host of the server, 'smcr why :PORT' with its port says what is missing there.
                    see 'smcr explain peer-no-smc'
`},
		{"declined", userState(eth0), nil, func(w *world) {
			w.out.SMC, w.out.Remote, w.out.Reason = false, true, smc.DiagPrefixMismatch
		}, "10.1.0.2:80", 1, `
FAILED   clc     the peer declined: 0x03070000 (subnets or prefixes of the peers differ)
                 -> Give the addresses of both hosts the same prefix and the same prefix length: see 'ip address'.
                    see 'smcr explain other-subnet'
`},
		{"declined here, unknown code", userState(eth0), nil, func(w *world) { w.out.SMC, w.out.Reason = false, 0x0a0b0c0d }, "10.1.0.2:80", 1, `
FAILED   clc     this host declined: 0x0a0b0c0d
                 -> see the logs of both hosts' stacks
`},
		{"broken off", userState(eth0), nil, func(w *world) { w.out.SMC, w.out.Text = false, "connection reset by peer" }, "10.1.0.2:80", 1,
			"FAILED   clc     connection reset by peer\n"},
		{"backend that cannot connect", userState(eth0), nil, func(w *world) { w.err = nl.ErrNotSupported }, "10.1.0.2:80", 0,
			"skipped  tcp     this backend cannot test connections\n"},
		{"probe failed", userState(eth0), nil, func(w *world) { w.err = errors.New("the roof is on fire") }, "10.1.0.2:80", 1,
			"FAILED   tcp     the roof is on fire\n"},
		{"rights are missing", func() nltest.State {
			s := userState(eth0)
			s.SysInfo.Problems = []string{"CAP_BPF is missing", "the stack cannot take connections of programs at the devices, so they stay TCP: operation not permitted"}
			s.SysInfo.NoWire = s.SysInfo.Problems[1]
			return s
		}(), nil, nil, "10.1.0.2", 1, `
ok       stack   smcr in user space, process 42, SMC version 1
warning  stack   CAP_BPF is missing
FAILED   stack   the stack cannot take connections of programs at the devices, so they stay TCP: operation not permitted
                 -> Start the stack as root, or with CAP_NET_ADMIN, CAP_BPF and, at its start, CAP_SYS_ADMIN.
                    see 'smcr explain no-wire'
skipped  route   depends on the failed step
`},
		{"no RoCE version 2", func() nltest.State {
			s := userState(eth0)
			s.SysInfo.Version, s.SysInfo.SMCRv2, s.SysInfo.RoCEv1, s.UEIDs = 2, true, true, []string{"A.B"}
			s.SysInfo.Problems = []string{"the port is taken"}
			return s
		}(), nil, nil, "10.1.0.2:80", 0, `
warning  stack   the port is taken
warning  eid     A.B, but the stack has no RoCE version 2: version 1 of SMC only
ok       route   eth0, local address 10.1.0.1/24: same subnet
`},
		{"no RoCE version 2 behind a router", func() nltest.State {
			s := userState(eth0)
			s.SysInfo.Version, s.SysInfo.SMCRv2, s.SysInfo.RoCEv1, s.UEIDs = 2, true, true, []string{"A.B"}
			return s
		}(), nil, func(w *world) {
			w.routes["10.1.0.2"] = route{NetDev: "eth0", Gateway: netip.MustParseAddr("10.9.0.1")}
		}, "10.1.0.2:80", 1, "FAILED   route   10.1.0.2 is behind router 10.9.0.1: version 1 of SMC-R needs it in the same subnet\n"},
		{"no cgroup", userState(eth0), nil, func(w *world) { w.err = fmt.Errorf("%w: %w", errNotAttached, syscall.EROFS) }, "10.1.0.2:80", 1,
			"FAILED   tcp     the connections of this process cannot use the stack: read-only file system\n" +
				"                 -> run it where programs are that use the stack, or start the stack with --cgroup or, in a pod, --pod-cgroup: see smcr-serve(8)\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake := nltest.NewFake(test.state)
			for _, p := range test.pnets {
				if err := fake.AddPNET(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			w := newWorld()
			if test.change != nil {
				test.change(w)
			}
			status, out, err := runCheck(t, w, nl.Multi{{Name: "user", Control: fake}}, test.args)
			if status != test.status {
				t.Errorf("exit status %d, want %d (%v)", status, test.status, err)
			}
			for line := range strings.Lines(strings.TrimPrefix(test.want, "\n")) {
				if !strings.Contains(out, line) {
					t.Errorf("no line %q in\n%s", line, out)
				}
			}
			if strings.HasPrefix(test.want, "\nok       stack") && test.name == "it works" {
				if diff := cmp.Diff(test.want[1:], out); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// TestColors checks that results have colors on a terminal, and nowhere else.
func TestColors(t *testing.T) {
	for _, test := range []struct {
		noColor, term string
		want          bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}} {
		t.Setenv("NO_COLOR", test.noColor)
		t.Setenv("TERM", test.term)
		streams, _, _, _ := cmdutil.MemoryStreams()
		tty, written := cmdtest.Terminal(t)
		streams.Out = tty
		steps := []Step{{Name: "stack", Result: OK, Text: "it runs"}, {Name: "route", Result: Failed, Text: "none"}, {Name: "device", Result: Skipped}}
		if err := show(&options{Factory: &cmdutil.Factory{IO: streams}}, []reportJSON{{Steps: steps}}); err != nil {
			t.Fatal(err)
		}
		want := "ok       stack   it runs\nFAILED   route   none\nskipped  device  \n"
		if test.want {
			want = "\x1b[32mok     \x1b[m  stack   it runs\n\x1b[31mFAILED \x1b[m  route   none\n\x1b[2mskipped\x1b[m  device  \n"
		}
		if got := written(); got != want {
			t.Errorf("NO_COLOR=%s TERM=%s: %q, want %q", test.noColor, test.term, got, want)
		}
	}
}

// TestTwoStacks checks that one stack that can reach the peer is enough, and checks both
// forms of output.
func TestTwoStacks(t *testing.T) {
	m := func() nl.Multi {
		return nl.Multi{
			{Name: "kernel", Control: nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 1}})},
			{Name: "user", Control: nltest.NewFake(userState(device("soft-eth0", 2, true)))},
		}
	}
	status, out, err := runCheck(t, newWorld(), m(), "10.1.0.2:80")
	if status != 0 || !strings.HasPrefix(out, "Stack: kernel\nok ") || !strings.Contains(out, "\n\nStack: user\nok ") {
		t.Errorf("%v\n%s", err, out)
	}
	_, out, _ = runCheck(t, newWorld(), m(), "10.1.0.2:80", "-o", "json")
	var reports []reportJSON
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		t.Fatal(err)
	}
	if len(reports) != 2 || reports[0].OK || !reports[1].OK || reports[1].Steps[3].Name != "device" || reports[1].Remote != "10.1.0.2" {
		t.Errorf("%+v", reports)
	}
}

// TestStart checks that a stack is started if there is none.
func TestStart(t *testing.T) {
	w := newWorld()
	if status, _, err := runCheck(t, w, nil, "10.1.0.2:80"); status != cmdutil.ExitNoBackend {
		t.Errorf("nothing to start: %d, %v", status, err)
	}
	w.started = nl.Multi{{Name: "user", Control: nltest.NewFake(userState(device("soft-eth0", 2, true)))}}
	status, _, err := runCheck(t, w, nil, "10.1.0.2:80")
	if status != 0 {
		t.Error(err)
	}
	if diff := cmp.Diff([]netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:80")}, w.probed, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("connections (-want +got):\n%s", diff)
	}
}

func TestArguments(t *testing.T) {
	for _, test := range []struct{ arg, host, port string }{
		{"host-b", "host-b", ""},
		{"host-b:http", "host-b", "http"},
		{"10.1.0.2", "10.1.0.2", ""},
		{"10.1.0.2:80", "10.1.0.2", "80"},
		{"fd00::2", "fd00::2", ""},
		{"[fd00::2]", "fd00::2", ""},
		{"[fd00::2]:80", "fd00::2", "80"},
		{"fe80::2%eth0", "fe80::2%eth0", ""},
	} {
		host, port, err := split(test.arg)
		if err != nil || host != test.host || port != test.port {
			t.Errorf("%s: %q, %q, %v", test.arg, host, port, err)
		}
	}
	for _, args := range []string{"", "a b", ":80", "host:", "host:a:b", "[fd00::2", "host -o xml", "host --timeout 0", "host:nosuchport"} {
		streams, _, _, _ := cmdutil.MemoryStreams()
		cmd := newCmd(&cmdutil.Factory{IO: streams}, newWorld(), nil)
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// TestOutcomes checks that the answers of the stacks are interpreted by their numbers.
func TestOutcomes(t *testing.T) {
	for _, test := range []struct {
		row  nl.Connection
		want outcome
	}{
		{nl.Connection{Mode: nl.ModeSMCR, Link: &nl.ConnLink{IBDev: "rxe0"}}, outcome{Announced: true, SMC: true, IBDev: "rxe0"}},
		{nl.Connection{Mode: nl.ModeTCP, Fallback: nl.ConnFallback{Reason: 0x03010000}}, outcome{Reason: smc.DiagPeerNoSMC}},
		{nl.Connection{Mode: nl.ModeTCP, Fallback: nl.ConnFallback{Reason: 0x03030002}}, outcome{Announced: true, Reason: smc.DiagNoSMCRDev}},
		{
			nl.Connection{Mode: nl.ModeTCP, Fallback: nl.ConnFallback{Reason: 0x05000000, Peer: 0x03070000}},
			outcome{Announced: true, Remote: true, Reason: smc.DiagPrefixMismatch},
		},
		{ // it declined an earlier one
			nl.Connection{Mode: nl.ModeTCP, Fallback: nl.ConnFallback{Reason: 0x05000000}},
			outcome{Announced: true, Remote: true, Reason: smc.DiagPeerDeclined},
		},
	} {
		var got outcome
		got.listed(&test.row)
		if got != test.want {
			t.Errorf("%+v: %+v, want %+v", test.row, got, test.want)
		}
	}
}

// TestReasons checks that each step that fails names a reason of the table, and says what to
// do, for each code that a side can decline with.
func TestReasons(t *testing.T) {
	for _, r := range reasons.All() {
		if r.Code == 0 {
			continue
		}
		for _, remote := range []bool{false, true} {
			w := newWorld()
			w.out.SMC, w.out.Remote, w.out.Reason = false, remote, r.Code
			m := nl.Multi{{Name: "user", Control: nltest.NewFake(userState(device("soft-eth0", 2, true)))}}
			_, out, _ := runCheck(t, w, m, "10.1.0.2:80", "-o", "json")
			var reports []reportJSON
			if err := json.Unmarshal([]byte(out), &reports); err != nil {
				t.Fatal(err)
			}
			for _, s := range reports[0].Steps {
				if s.Result == Failed && (s.Reason != r.Name || s.Advice != strings.Join(r.Cure, "\n")) {
					t.Errorf("%s: %+v", r.Name, s)
				}
			}
			// Within a machine, TCP is what is wanted.
			if reports[0].OK != (r.Code == smc.DiagLocal) {
				t.Errorf("%s: OK is %v", r.Name, reports[0].OK)
			}
		}
	}
}

// TestNamedReasons checks that each reason that the steps name is in the table.
func TestNamedReasons(t *testing.T) {
	n := 0
	for _, file := range []string{"steps.go", "check.go"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:fail\("\w+", |Reason: |reason :?= )"([^"]+)"`).FindAllSubmatch(b, -1) {
			n++
			if _, ok := reasons.Named(string(m[1])); !ok {
				t.Errorf("%s: no reason %s", file, m[1])
			}
		}
	}
	if n < 15 {
		t.Errorf("found %d names", n)
	}
}

// TestHostileText checks that no step prints control characters, or lines, that the peer or
// the stack has sent.
func TestHostileText(t *testing.T) {
	const hostile = "\x1b[2J\u009b1m\nfake\r\u202e\xff"
	state := userState(device("soft"+hostile, 2, true))
	state.SysInfo.Version, state.SysInfo.SMCRv2, state.UEIDs = 2, true, []string{"EID" + hostile}
	for i, change := range []func(*world, *nltest.State){
		func(*world, *nltest.State) {},
		func(w *world, _ *nltest.State) { w.out.IBDev = hostile },
		func(w *world, _ *nltest.State) { w.out = outcome{Announced: true, Text: hostile} },
		func(w *world, _ *nltest.State) { w.err = errors.New(hostile) },
		func(w *world, _ *nltest.State) { w.routes["10.1.0.2"] = route{NetDev: hostile, Local: direct.Local} },
		func(_ *world, s *nltest.State) { s.SysInfo.Stack = hostile },
	} {
		w, s := newWorld(), state
		change(w, &s)
		m := nl.Multi{{Name: "user", Control: nltest.NewFake(s)}}
		_, out, err := runCheck(t, w, m, "10.1.0.2:80")
		said := cmdutil.Message(err)
		if strings.ContainsFunc(out+said, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) || strings.Contains(out, "\nfake") || !strings.Contains(out+said, "fake") {
			t.Errorf("case %d: %q, %q", i, out, said)
		}
		_, out, _ = runCheck(t, w, m, "10.1.0.2:80", "-o", "json")
		if strings.ContainsFunc(out, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) || out != "" && !json.Valid([]byte(out)) {
			t.Errorf("case %d: JSON: %q", i, out)
		}
	}
}
