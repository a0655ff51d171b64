// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/kernelsmc"
	"smcr/internal/testing/built"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{
		{"0", 0}, {"16384", 16384}, {"64k", 65536}, {"64K", 65536}, {"1m", 1 << 20}, {"2047M", 2047 << 20},
		{"", -1}, {"k", -1}, {"5x", -1}, {"-1", -1}, {"+1", -1}, {"1.5M", -1}, {"2048M", -1}, {"99999999999", -1}, {"1kk", -1}, {" 1", -1},
	} {
		got, err := parseSize(tt.in)
		if tt.want < 0 && err == nil || tt.want >= 0 && (err != nil || got != tt.want) {
			t.Errorf("%q: %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args string
		want *Options // nil means a usage error
	}{
		{"prog", &Options{Mode: ModeAuto, Argv: []string{"prog"}}},
		{"-v -- prog -v", &Options{Mode: ModeAuto, Verbose: true, Argv: []string{"prog", "-v"}}},
		{"--mode kernel -r 64k -t 1M -d prog", &Options{Mode: ModeKernel, Debug: true, Kernel: kernelsmc.Config{RcvBuf: 64 << 10, SndBuf: 1 << 20}, Argv: []string{"prog"}}},
		{"--ipproto-smc prog", &Options{Mode: ModeAuto, Kernel: kernelsmc.Config{Inet: true}, Argv: []string{"prog"}}},
		{"--no-adapt prog", &Options{Mode: ModeAuto, NoAdapt: true, Argv: []string{"prog"}}},
		{"--mode user --netdev eth0 --netdev eth1 prog", &Options{Mode: ModeUser,
			Serve: []string{"--netdev", "eth0", "--netdev", "eth1"}, Argv: []string{"prog"}}},
		{"--mode tcp prog", &Options{Mode: ModeTCP, Argv: []string{"prog"}}},
		{"--install /opt/smcr", &Options{Mode: ModeAuto, Install: "/opt/smcr", Argv: []string{}}},
		{"--install /opt/smcr prog", nil},
		{"", nil},
		{"--mode ipx prog", nil},
		{"--mode user -r 64k prog", nil},
		{"--mode tcp --ipproto-smc prog", nil},
		{"--mode kernel --netdev eth0 prog", nil},
		{"-r 64k --netdev eth0 prog", nil},
	} {
		var got *Options
		f := &cmdutil.Factory{IO: &cmdutil.IOStreams{ErrOut: io.Discard}}
		cmd := newCmd(f, func(o *Options) error { got = o; return nil })
		cmd.SetArgs(strings.Fields(tt.args))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.Execute()
		if tt.want == nil {
			if cmdutil.ExitCode(err) != cmdutil.ExitUsage {
				t.Errorf("%q: %v, want a usage error", tt.args, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.args, err)
			continue
		}
		got.Err, got.IO = nil, nil
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%q:\n%s", tt.args, d)
		}
	}
}

type fakeDevices struct {
	roce, ism     []nl.Device
	roceErr, dErr error
}

func (f fakeDevices) Devices(context.Context) ([]nl.Device, error)         { return f.roce, f.roceErr }
func (f fakeDevices) DevicesD(context.Context) ([]nl.Device, error)        { return f.ism, f.dErr }
func (f fakeDevices) LinkGroupsD(context.Context) ([]nl.LinkGroupD, error) { return nil, nil }

func TestUsable(t *testing.T) {
	down := nl.Device{Name: "rxe0", Ports: []nl.Port{{Valid: true}}}
	second := nl.Device{Name: "mlx5_0", Ports: []nl.Port{{Valid: true}, {Valid: true, Active: true}}}
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		f    fakeDevices
		want bool
		err  error
	}{
		{"nothing", fakeDevices{}, false, nil},
		{"port down", fakeDevices{roce: []nl.Device{down}}, false, nil},
		{"second port", fakeDevices{roce: []nl.Device{down, second}}, true, nil},
		{"ISM", fakeDevices{roce: []nl.Device{down}, ism: []nl.Device{{}}}, true, nil},
		{"no SMC-D", fakeDevices{roce: []nl.Device{down}, dErr: nl.ErrNotSupported}, false, nil},
		{"broken", fakeDevices{roceErr: broken}, false, broken},
	} {
		got, err := usable(t.Context(), tt.f)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v", tt.name, got, err)
		}
	}
}

func TestKernelSummary(t *testing.T) {
	before := kernelCounters{valid: true,
		stats:     nl.Stats{SMCR: stats.Tech{ClientV2: 7}},
		fallbacks: nl.Fallbacks{ClientTotal: 1, Reasons: []nl.Fallback{{Side: smc.Client, Reason: 0x05000000, Count: 1}}},
	}
	after := kernelCounters{valid: true,
		stats: nl.Stats{SMCR: stats.Tech{ClientV2: 9, ServerV1: 1}, SMCD: stats.Tech{ServerV2: 1}},
		fallbacks: nl.Fallbacks{ClientTotal: 3, ServerTotal: 1, Reasons: []nl.Fallback{
			{Side: smc.Client, Reason: 0x05000000, Count: 3}, {Side: smc.Server, Reason: 0x0fffffff, Count: 1},
		}},
	}
	s := kernelsmc.Stats{SMC: 8, TCP: map[string]uint64{kernelsmc.ReasonNetns: 2}}
	const sockets = "smcr: 8 sockets of the program used the kernel's SMC, 2 used TCP\n" +
		"smcr: 2 TCP sockets: no privilege in the program's network namespace (see 'smcr explain other-namespace')\n"
	var b bytes.Buffer
	kernelSummary(&b, s, before, after)
	want := "smcr: 3 connections over SMC-R, 1 over SMC-D, 3 over TCP (all of this network namespace)\n" +
		"smcr: 2 over TCP: peer declined (0x05000000, as client) (see 'smcr explain peer-declined')\n" +
		"smcr: 1 over TCP: unknown reason (0x0fffffff, as server)\n" + sockets
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
	b.Reset()
	kernelSummary(&b, s, before, kernelCounters{})
	if d := cmp.Diff(sockets, b.String()); d != "" {
		t.Error(d)
	}
}

func TestSummary(t *testing.T) {
	var b bytes.Buffer
	summary(&b, outcomes{
		smcr: 1, local: 3, tcp: map[string]uint64{"userstack: no RoCE device for this network: softroce: netdev is gone": 2},
		resets: map[string]uint64{"transport retries exceeded": 1},
	}, func() []nl.Device { return nil })
	kernelSummary(&b, kernelsmc.Stats{SMC: 1, TCP: map[string]uint64{kernelsmc.ReasonNetns: 1}},
		kernelCounters{valid: true}, kernelCounters{valid: true, stats: nl.Stats{SMCR: stats.Tech{ClientV2: 1}}})
	want := "smcr: 1 connection over SMC-R, 2 over TCP, 3 local\n" +
		"smcr: 2 over TCP: no RoCE device for this network: netdev is gone (see 'smcr explain no-smcr-device')\n" +
		"smcr: 1 reset: transport retries exceeded (see 'smcr explain path-died')\n" +
		"smcr: 1 connection over SMC-R, 0 over SMC-D, 0 over TCP (all of this network namespace)\n" +
		"smcr: 1 socket of the program used the kernel's SMC, 1 used TCP\n" +
		"smcr: 1 TCP socket: no privilege in the program's network namespace (see 'smcr explain other-namespace')\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

// TestSummaryDevice: the summary says in words that software did the work of a card, once, and only
// if something was over SMC-R.
func TestSummaryDevice(t *testing.T) {
	soft, other := nl.Device{Name: "soft-eth0", Provider: "softroce"}, nl.Device{Name: "mlx5_0"}
	const one = "smcr: 1 connection over SMC-R, 0 over TCP\n"
	for _, tt := range []struct {
		name    string
		smc     uint64
		devices []nl.Device
		want    string
	}{
		{"software", 1, []nl.Device{soft, soft}, one + "smcr: SMC-R was over software RoCE (no card): see smcr(7)\n"},
		{"both", 1, []nl.Device{other, soft}, one + "smcr: soft-eth0: software RoCE (no card), see smcr(7)\n"},
		{"cards", 1, []nl.Device{other}, one},
		{"no answer", 1, nil, one},
		{"nothing", 0, []nl.Device{soft}, "smcr: 0 connections over SMC-R, 0 over TCP\n"},
	} {
		var b bytes.Buffer
		summary(&b, outcomes{smcr: tt.smc}, func() []nl.Device { return tt.devices })
		if d := cmp.Diff(tt.want, b.String()); d != "" {
			t.Errorf("%s:\n%s", tt.name, d)
		}
	}
}

// TestModes runs smcr without privileges, in a network namespace without a stack. On a
// kernel without SMC, only TCP is left there.
func TestModes(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: sudo go test ./internal/run")
	}
	if err := (kernelsmc.Config{}).Probe(); err == nil {
		t.Skip("needs a kernel without SMC; TestGuest is for kernels with it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	if err := built.Programs(ctx, dir, "smcr/cmd/smcr"); err != nil {
		t.Fatal(err)
	}
	smcr := filepath.Join(dir, "smcr")
	const (
		tcp      = "smcr: all connections over TCP: "
		noKernel = "smcr: the kernel has no SMC: try 'modprobe smc', or use --mode user\n"
		noStack  = "no smcr stack in this network namespace and no privilege to start one: run 'smcr serve' as root\n"
	)
	for _, tt := range []struct {
		args   string
		status int
		stdout string
		stderr string
	}{
		{"-- sh -c 'echo ran; exit 3'", 3, "ran\n", tcp + "the kernel has no SMC; " + noStack},
		{"-v --netdev lo -- echo ran", 0, "ran\n", tcp + noStack},
		{"--mode tcp -v -- sh -c 'echo ran; kill -9 $$'", 137, "ran\n", "smcr: all connections over TCP\n"},
		{"--mode tcp -- sh -c 'grep -q NoNewPrivs:.0 /proc/$$/status'", 0, "", ""},
		{"--mode user -- echo ran", cmdutil.ExitPermission, "", "smcr: " + noStack},
		{"--mode kernel -- echo ran", cmdutil.ExitNoBackend, "", noKernel},
		{"--mode kernel --ipproto-smc -- echo ran", cmdutil.ExitNoBackend, "",
			"smcr: the kernel has no sockets with protocol IPPROTO_SMC: omit --ipproto-smc (it needs Linux 6.11), try 'modprobe smc', or use --mode user\n"},
		{"--mode kernel -- /no/such", 127, "", "smcr: /no/such: no such program\n"},
	} {
		// If a signal has killed the program, the shell exits with 128 plus its number,
		// as smcr does.
		cmd := exec.CommandContext(ctx, "unshare", "--net", "setpriv", "--bounding-set=-all", "--inh-caps=-all",
			"sh", "-c", smcr+" run "+tt.args+"; exit $?")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		// Remove the message of the shell that the program was killed.
		said := strings.ReplaceAll(stderr.String(), "Killed\n", "")
		// Whether smcr may make a cgroup for a stack that starts later depends on where this runs. TestAhead of package e2e has one.
		said = strings.Replace(said, "smcr: connections are TCP until there is a stack: ", tcp, 1)
		said = strings.Replace(said, tcp+"there is no stack\n", "", 1)
		if got := cmd.ProcessState.ExitCode(); got != tt.status || stdout.String() != tt.stdout || said != tt.stderr {
			t.Errorf("run %s: status %d (%v), want %d; output %q, want %q\nerrors %q\nwant   %q", tt.args, got, err, tt.status, stdout.String(), tt.stdout, said, tt.stderr)
		}
	}
}
