// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/services"
)

// unitWorld is newWorld with systemd: the service web, and one that systemd starts at its first connection.
func unitWorld(t *testing.T) *world {
	w := newWorld(t)
	w.procs = fakeProcs(t,
		fakeTask{pid: 1, comm: "systemd", cmdline: "/sbin/init", cgroup: "0::/init.scope\n", sockets: []int{105}},
		fakeTask{pid: 50, comm: "smcr", cgroup: "0::/system.slice/smcr.service\n", sockets: []int{102, 103}},
		fakeTask{pid: 60, parent: 1, uid: 5, comm: "web-run", cgroup: "0::/system.slice/web.service\n"},
		fakeTask{pid: 61, parent: 60, uid: 5, comm: "web", cgroup: "0::/system.slice/web.service\n", sockets: []int{101, 102, 103}},
		fakeTask{pid: 62, parent: 61, uid: 5, comm: "web", cgroup: "0::/system.slice/web.service/below\n", sockets: []int{101}},
		fakeTask{pid: 80, parent: 1, uid: 6, comm: "curl-with-a-lon", cgroup: "0::/user.slice/user-6.slice/session-1.scope\n", sockets: []int{104}},
		fakeTask{pid: 81, parent: 80, uid: 6, comm: "idle", cgroup: "0::/system.slice/idle.service\n"},
	)
	return w
}

// TestUnit: the sockets of all processes of a unit are those of the unit, whether or not smcr carries them.
func TestUnit(t *testing.T) {
	const web = "0.0.0.0:80 10.0.0.1:80>10.0.0.2:4001 10.0.0.1:80>10.0.0.3:4002"
	for arg, want := range map[string]string{
		"web": web, "web.service": web, "system.slice": web,
		"session-1.scope": "10.0.0.1:5000>10.0.0.9:443", "user-6.slice": "10.0.0.1:5000>10.0.0.9:443",
		"curl-with-a-long-name": "10.0.0.1:5000>10.0.0.9:443",
		"mail.socket":           "127.0.0.1:25",
		"web.socket":            web,
	} {
		rows, notes, err := unitWorld(t).ask(t, arg, func(o *options) { o.env.listens = fakeListens })
		var got []string
		for _, r := range rows {
			got = append(got, strings.TrimSuffix(r.Local+">"+r.Remote, ">"))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %s, %v, want %s", arg, got, err, want)
		}
		if program := strings.HasPrefix(arg, "curl"); program != (notes == "smcr: no process is in a service "+arg+".service: these are the processes called "+arg+"\n") || !program && notes != "" {
			t.Errorf("%s: %q", arg, notes)
		}
	}
}

func fakeListens(_ context.Context, unit string) ([]netip.AddrPort, error) {
	switch unit {
	case "mail.socket":
		return []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:25")}, nil
	case "web.socket":
		return []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80"), netip.MustParseAddrPort("[::]:80")}, nil
	case "quiet.socket":
		return nil, nil
	case "away.socket":
		return nil, services.ErrNoSystemd
	}
	return nil, fmt.Errorf("%w: %s", services.ErrNotFound, unit)
}

// TestNoUnit: what has no sockets is an error that says what to try.
func TestNoUnit(t *testing.T) {
	for arg, want := range map[string]string{
		"nginx":        "nginx is no service or program with a process, and no host: see 'systemctl status nginx'",
		"nginx.slice":  "no process is in nginx.slice: see 'systemctl status nginx.slice'",
		"idle":         "no TCP or SMC socket of idle.service in this network namespace: if systemd listens for it, 'systemctl list-sockets' has the unit to ask about",
		"quiet.socket": "no TCP or SMC socket of quiet.socket in this network namespace: see 'systemctl status quiet.socket'",
		"none.socket":  "no unit none.socket: see 'systemctl list-sockets'",
	} {
		rows, _, err := unitWorld(t).ask(t, arg, func(o *options) { o.env.listens = fakeListens })
		if rows != nil || cmdutil.ExitCode(err) != cmdutil.ExitNotFound || cmdutil.Message(err) != want {
			t.Errorf("%s: %v, %q, want %q", arg, rows, cmdutil.Message(err), want)
		}
	}
	if _, _, err := unitWorld(t).ask(t, "away.socket", func(o *options) { o.env.listens = fakeListens }); !strings.Contains(cmdutil.Message(err), "no systemd runs here") {
		t.Errorf("no systemd: %v", err)
	}
}

// TestStackUnit: of the stack itself, what it carries for programs is not shown.
func TestStackUnit(t *testing.T) {
	rows, _, err := unitWorld(t).ask(t, "smcr")
	for _, r := range rows {
		if r.Carrier == "SMCR" {
			t.Errorf("%+v", r)
		}
	}
	if err != nil || len(rows) != 1 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// TestOfSystemd: a socket on which systemd listens is that of the program that has it, too. If none has, the advice is the unit.
func TestOfSystemd(t *testing.T) {
	w := unitWorld(t)
	rows, _, err := w.ask(t, "10.0.0.9")
	if err != nil || len(rows) != 1 || rows[0].Process.PID != 80 {
		t.Fatalf("%+v, %v", rows, err)
	}
	w.tcp[4] = socket(5, 105, "0.0.0.0:25", "")
	if rows, _, err = w.ask(t, ":25"); err != nil || len(rows) != 1 || rows[0].Process.PID != 1 || !strings.Contains(rows[0].Advice, "'systemctl list-sockets'") {
		t.Errorf("%+v, %v", rows, err)
	}
	w.procs = fakeProcs(t,
		fakeTask{pid: 1, comm: "systemd", cmdline: "/sbin/init", cgroup: "0::/init.scope\n", sockets: []int{105}},
		fakeTask{pid: 70, comm: "mail", cmdline: "mail", cgroup: "0::/system.slice/mail.service\n", sockets: []int{105}},
	)
	if rows, _, err = w.ask(t, ":25"); err != nil || len(rows) != 1 || rows[0].Process.PID != 70 || rows[0].Process.More != 1 || !strings.Contains(rows[0].Advice, "'smcr service enable mail.service'") {
		t.Errorf("%+v, %v", rows, err)
	}
	if got := w.procs.services(); !slices.Equal(got, []string{"mail"}) {
		t.Errorf("services that run: %q", got)
	}
}

func TestUnitsOf(t *testing.T) {
	for cgroups, want := range map[string]string{
		"0::/system.slice/system-getty.slice/getty@tty1.service/x.service\n":     "system.slice system-getty.slice getty@tty1.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.service\n": "user.slice user-1000.slice user@1000.service",
		"0::/user.slice/user-1000.slice/session-1.scope\n":                       "user.slice user-1000.slice session-1.scope",
		"0::/docker/0123/system.slice/nginx.service\n":                           "",
		"0::/system.slice/$(x).service\n":                                        "system.slice",
		"0::/\n":                                                                 "",
	} {
		if got := strings.Join(unitsOf(cgroups, "0::/init.scope\n"), " "); got != want {
			t.Errorf("%q: %q, want %q", cgroups, got, want)
		}
	}
}
