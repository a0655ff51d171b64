// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
)

// A bed runs smcr service with a systemd and a stack that are none.
type bed struct {
	t           *testing.T
	dir         string
	stack       *nltest.Fake // nil: there is none
	conf        string
	main        string // what the configuration file itself is to be; "": empty, or not there
	sockets     []socket
	stackUnit   string                // of this network namespace
	on          func([]nl.Attachment) // alters what the stack says
	ctx         context.Context       // nil: that of the test
	out, errOut strings.Builder
}

// A socket is one of a cgroup.
type socket struct {
	cgroup string
	nl.Connection
}

// open is a stack that one command does not end.
type open struct {
	*nltest.Fake
	on func([]nl.Attachment)
}

func (open) Close() error { return nil }

func (s open) Attachments(ctx context.Context) ([]nl.Attachment, error) {
	all, err := s.Fake.Attachments(ctx)
	if s.on != nil {
		s.on(all)
	}
	return all, err
}

// Attach keeps that the cgroup is there, and its counts.
func (s open) Attach(ctx context.Context, a nl.Attachment) error {
	all, err := s.Fake.Attachments(ctx)
	for _, have := range all {
		if have.Path == a.Path && have.Cgroup != 0 {
			return nil
		}
	}
	return errors.Join(err, s.Fake.Attach(ctx, a))
}

const fakeSystemctl = `#!/bin/sh
eval unit=\$$#
case "$1" in
show) case "$unit" in *@.*) echo "Unit name $unit is neither a valid invocation ID nor unit name." >&2; exit 1;; esac
  template=$(echo "$unit" | sed 's/@.*\(\.[a-z]*\)$/@\1/')
  if [ -e "$UNITS/$unit.show" ]; then cat "$UNITS/$unit.show"
  elif [ -e "$UNITS/$template.show" ]; then sed "s|@\.|@$(echo "$unit" | sed 's/.*@\(.*\)\.[a-z]*$/\1/').|; s|%i|$unit|" "$UNITS/$template.show"
  else printf 'Id=%s\nLoadState=not-found\n' "$unit"; fi;;
cat) cat "$UNITS/$unit.cat" 2>/dev/null || cat "$UNITS/$(echo "$unit" | sed 's/@.*\(\.[a-z]*\)$/@\1/').cat";;
list-*) cat "$UNITS/$1";;
*) echo "$*" >>"$UNITS/calls";;
esac
`

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), stack: nltest.NewFake(nltest.State{})}
	b.conf = filepath.Join(b.dir, "etc", "smcr.yaml")
	b.write("systemctl", fakeSystemctl)
	if err := os.Chmod(filepath.Join(b.dir, "systemctl"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("UNITS", b.dir)
	t.Setenv("PATH", b.dir+":"+os.Getenv("PATH"))
	return b
}

func (b *bed) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// unit makes a unit with properties.
func (b *bed) unit(name string, props ...string) {
	b.t.Helper()
	b.write(name+".show", strings.Join(append(props, "Id="+name, "LoadState=loaded", "Slice=system.slice", "ActiveState=active", "SubState=running", "MainPID=0\n"), "\n"))
	b.write(name+".cat", "# /lib/systemd/system/"+name+"\n[Service]\nExecStart=/usr/sbin/a\n")
}

// run runs a command line of smcr service.
func (b *bed) run(args ...string) error {
	b.t.Helper()
	b.out.Reset()
	b.errOut.Reset()
	f := &cmdutil.Factory{
		IO: &cmdutil.IOStreams{Out: &b.out, ErrOut: &b.errOut},
		Dial: func(context.Context, string) (nl.Multi, error) {
			if b.stack == nil {
				return nil, nl.ErrNoBackend
			}
			return nl.Multi{{Name: "user", Control: open{b.stack, b.on}}}, nil
		},
	}
	cmd := newCmd(&options{
		Factory: f, systemd: systemd{etc: filepath.Join(b.dir, "system")}, config: b.conf,
		sockets: b.lists(), stackUnit: func() string { return b.stackUnit },
	})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&b.out)
	ctx := b.ctx
	if ctx == nil {
		ctx = b.t.Context()
	}
	return cmd.ExecuteContext(ctx)
}

// lists has the number of a cgroup be its place in sockets.
func (b *bed) lists() socketLists {
	return socketLists{
		func(path string) (ids []uint64) {
			for i, s := range b.sockets {
				if within(s.cgroup, path) {
					ids = append(ids, uint64(i+1))
				}
			}
			return ids
		},
		func(found func(cookie, cgroup uint64, c nl.Connection)) error {
			for i, s := range b.sockets {
				found(0, uint64(i+1), s.Connection)
			}
			return nil
		},
	}
}

func (b *bed) must(args ...string) {
	b.t.Helper()
	if err := b.run(args...); err != nil {
		b.t.Fatalf("smcr service %q: %v", args, err)
	}
}

// want checks what is attached, and what the drop-in file is, without its head, or "" if it is not there.
func (b *bed) want(conf string, attached ...string) {
	b.t.Helper()
	var got []string
	if b.stack != nil {
		all, err := b.stack.Attachments(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		for _, a := range all {
			got = append(got, a.Path)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(attached) {
		b.t.Errorf("attached: %q, want %q", got, attached)
	}
	if conf != "" {
		conf = ownHead + conf
	}
	for file, want := range map[string]string{ownFile(b.conf): conf, b.conf: b.main} {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && want == "" && file != b.conf || string(text) != want {
			b.t.Errorf("%s: %v\n%s\nwant\n%s", file, err, text, want)
		}
	}
}

// configure writes the configuration file, and drop-in files by their names.
func (b *bed) configure(main string, dropIns map[string]string) {
	b.t.Helper()
	b.main = main
	if err := os.MkdirAll(config.DropIns(b.conf), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if main != "" {
		b.write("etc/smcr.yaml", main)
	}
	for name, text := range dropIns {
		b.write("etc/smcr.yaml.d/"+name, text)
	}
}

const (
	cgroupA = "/system.slice/a.service"
	entryA  = "programs:\n  - cgroup: " + cgroupA + "\n"
)

func TestEnable(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	b.unit("b.service", "TriggeredBy=b.path other.socket", "ControlGroup=/x.slice/b.service")
	b.unit("b.socket", "Triggers=b.service")
	b.unit("other.socket", "Triggers=b.service")
	b.unit("a.socket", "Triggers=something.service") // not the socket of a
	b.must("show", "a")
	if got := b.out.String(); got != "# "+ownFile(b.conf)+"\n"+entryA {
		t.Errorf("show: %q", got)
	}
	b.want("")
	for range 2 {
		b.must("enable", "a")
		b.want(entryA, cgroupA)
	}
	if b.out.Len() > 0 || !strings.Contains(b.errOut.String(), "new connections of a.service use SMC-R") {
		t.Errorf("enabled again: %q, %q", &b.out, &b.errOut)
	}
	sockets := "  - cgroup: /x.slice/b.service\n  - cgroup: /system.slice/other.socket\n  - cgroup: /system.slice/b.socket\n"
	b.must("enable", "b.service")
	b.want(entryA+sockets, cgroupA, "/x.slice/b.service", "/system.slice/other.socket", "/system.slice/b.socket")
	// A unit that is gone, and a socket that is not its any more.
	for _, gone := range []string{"b.service.show", "other.socket.show"} {
		if err := os.Remove(filepath.Join(b.dir, gone)); err != nil {
			t.Fatal(err)
		}
	}
	b.must("disable", "b", "other.socket")
	b.want(entryA, cgroupA)
	b.must("disable", "a")
	b.want("")
	if _, err := os.Stat(filepath.Join(b.dir, "calls")); err == nil {
		t.Error("systemd was told to do something")
	}
	if err := b.run("disable", "a"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestEnableTakesOld: a drop-in file of an earlier release goes, and the unit is to be restarted.
func TestEnableTakesOld(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	for _, line := range []string{"enable", "disable"} {
		s := systemd{etc: filepath.Join(b.dir, "system")}
		if err := os.MkdirAll(filepath.Dir(s.file("a.service")), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.file("a.service"), []byte("[Service]\nExecStart=\nExecStart=smcr run -- /usr/sbin/a\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		b.must(line, "a")
		if _, err := os.Stat(s.file("a.service")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(b.errOut.String(), "restart it") {
			t.Errorf("%s: %v, %s", line, err, &b.errOut)
		}
	}
	b.must("enable", "--restart", "a")
	if calls, err := os.ReadFile(filepath.Join(b.dir, "calls")); string(calls) != "daemon-reload\ndaemon-reload\nrestart -- a.service\n" {
		t.Errorf("%q, %v", calls, err)
	}
}

// TestEnableWithoutStack: a unit is in the configuration, for the stack to come.
func TestEnableWithoutStack(t *testing.T) {
	b := newBed(t)
	b.stack = nil
	b.unit("a.service")
	b.must("enable", "a")
	b.want(entryA)
	if !strings.Contains(b.errOut.String(), "as soon as there is a stack") {
		t.Errorf("%q", &b.errOut)
	}
	b.must("status")
	if !strings.Contains(b.out.String(), "yes, but no stack runs") {
		t.Errorf("%s", &b.out)
	}
	b.must("disable", "a")
	b.want("")
}

func TestEnableRefuses(t *testing.T) {
	b := newBed(t)
	b.unit("lonely.service", "PrivateNetwork=yes")
	b.unit("elsewhere.service", "NetworkNamespacePath=/dev/null")
	b.unit("umbrella.service", "ConsistsOf=a.service")
	b.write("umbrella.service.cat", "[Service]\nExecStart=/bin/true\n")
	b.unit("smcr.service")
	b.write("smcr.service.cat", "[Service]\nExecStart=/usr/local/bin/smcr serve\n")
	b.unit("smcr-run.socket")
	b.unit("smcr-mine.service")
	b.write("smcr-mine.service.cat", "[Service]\nExecStart=/opt/smcr exporter\n")
	b.unit("a.service")
	for unit, want := range map[string]struct {
		err  error
		says string
	}{
		"lonely":          {ErrUnfit, "no network"},
		"elsewhere":       {ErrUnfit, "nsenter --net=/dev/null smcr service enable elsewhere"},
		"umbrella":        {ErrNoProgram, "enable a"},
		"smcr":            {ErrUnfit, "a stack or a part of smcr"},
		"smcr-run.socket": {ErrUnfit, "a stack or a part of smcr"},
		"smcr-mine":       {ErrUnfit, "a stack or a part of smcr"},
		"nosuch":          {fs.ErrNotExist, "there is no unit nosuch.service"},
	} {
		if err := b.run("enable", unit); !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v, want %q", unit, err, want.says)
		}
	}
	b.want("")
	// A file that only a person can change is left alone, and the error says what is to be in it.
	const byHand = "programs: [{cgroup: /a}]\n"
	b.configure("", map[string]string{ownName: byHand})
	if err := b.run("enable", "a"); !errors.Is(err, config.ErrByHand) || !strings.Contains(err.Error(), ownFile(b.conf)+": nothing was changed") || !strings.Contains(err.Error(), "'cgroup: "+cgroupA+"'") {
		t.Error(err)
	}
	if err := os.Remove(ownFile(b.conf)); err != nil {
		t.Error(err)
	}
	b.want("")
	// An error in any file of the configuration names it.
	b.configure("ueids: [A]\n", map[string]string{"10-x.yaml": "seid: true\nnothing: 7\n"})
	for _, command := range []string{"enable", "disable"} {
		if err := b.run(command, "a"); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "smcr.yaml.d/10-x.yaml: line 2: ") {
			t.Errorf("%s: %v", command, err)
		}
	}
	b.want("")
	b.write("etc/smcr.yaml.d/10-x.yaml", "")
	// A socket makes the network of a unit without one.
	b.unit("lonely.service", "PrivateNetwork=yes", "TriggeredBy=lonely.socket")
	b.unit("lonely.socket", "Triggers=lonely.service")
	b.must("enable", "lonely")
	if err := b.stack.Detach(t.Context(), "/system.slice/lonely.socket"); err != nil {
		t.Error(err)
	}
}

// TestEnableUndone: if the stack refuses, the configuration is as it was.
func TestEnableUndone(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	refused := errors.New("refused")
	for _, before := range []struct{ main, own string }{
		{"", ""},
		{"ueids: [A]\n", ""},
		{"ueids: [A]\n", "programs:\n  - cgroup: /b\n"},
		{"ueids: [A]\n" + entryA, "programs:\n  - cgroup: /b\n"},
	} {
		own := map[string]string{}
		if before.own != "" {
			own[ownName] = ownHead + before.own
		}
		b.configure(before.main, own)
		o := &options{Factory: &cmdutil.Factory{IO: &cmdutil.IOStreams{Out: &b.out, ErrOut: &b.errOut}}, systemd: newSystemd(), sockets: b.lists(), config: b.conf}
		if err := enable(t.Context(), o, refusing{b.stack, refused}, "a"); !errors.Is(err, refused) {
			t.Error(err)
		}
		b.want(before.own)
	}
}

type refusing struct {
	nl.Attacher
	err error
}

func (r refusing) Attach(context.Context, nl.Attachment) error { return r.err }

func TestStatus(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	b.unit("c.service")
	b.stack = nltest.NewFake(nltest.State{Attachments: []nl.Attachment{
		{Path: "/user.slice/smcr-run-1-x", Run: true},
		{Path: "/kubepods/besteffort"}, // no unit
		{Path: cgroupA, Cgroup: 7, Outcomes: nl.Outcomes{SMCR: 5, TCP: []nl.Fallback{{Side: smc.Client, Reason: uint32(smc.DiagPeerNoSMC), Count: 2}}}},
	}})
	for line, want := range map[string][]row{
		"status":     {{Unit: "a.service", Cgroup: cgroupA, Enabled: true, Attached: true, SMCR: 5, TCP: 2}},
		"status a c": {{Unit: "a.service", Cgroup: cgroupA, Enabled: true, Attached: true, SMCR: 5, TCP: 2}, {Unit: "c.service", Cgroup: "/system.slice/c.service"}},
	} {
		b.must(append(strings.Fields(line), "-o", "json")...)
		var rows []row
		if err := json.Unmarshal([]byte(b.out.String()), &rows); err != nil {
			t.Fatal(err)
		}
		if len(rows) != len(want) {
			t.Fatalf("%s: %+v", line, rows)
		}
		for i, r := range rows {
			if (len(r.Reasons) == 1) != (r.TCP > 0) {
				t.Errorf("%+v", r)
			}
			r.Reasons, r.Active, r.Sub = nil, "", ""
			if fmt.Sprint(r) != fmt.Sprint(want[i]) {
				t.Errorf("%s: %+v, want %+v", line, r, want[i])
			}
		}
		b.must(strings.Fields(line)...)
		if !strings.Contains(b.out.String(), smc.DiagPeerNoSMC.Text()) {
			t.Errorf("%s:\n%s", line, &b.out)
		}
	}
	if err := b.run("status", "nosuch"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
