// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"strings"
	"testing"
)

const smcr = "/usr/bin/smcr"

// unit makes a unit of the text of its files.
func unit(name, text string, props ...string) Unit {
	u := Unit{Name: name, Props: map[string]string{"LoadState": "loaded"}, Settings: parseCat(text, "/etc/systemd/system/"+name+".d/"+dropInName)}
	for i := 0; i < len(props); i += 2 {
		u.Props[props[i]] = props[i+1]
	}
	return u
}

// TestNew checks the lines of drop-in files that differ between units.
func TestNew(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		notes            int
	}{
		{"plain", "ExecStart=/usr/sbin/a -b 'c d' $E %i", "ExecStart=/usr/bin/smcr run -- /usr/sbin/a -b 'c d' $E %i", 0},
		{"prefix", "ExecStart=-!!/usr/sbin/a", "ExecStart=-!!/usr/bin/smcr run -- /usr/sbin/a", 0},
		{"continued", "ExecStart=/usr/sbin/a \\\n# a comment\n  -b", "ExecStart=/usr/bin/smcr run -- /usr/sbin/a    -b", 0},
		{"two commands", "Type=oneshot\nExecStart=/a\nExecStart=/b", "ExecStart=/usr/bin/smcr run -- /a\nExecStart=/usr/bin/smcr run -- /b", 0},
		{"replaced", "ExecStart=/a\n# /etc/systemd/system/x.service.d/o.conf\n[Service]\nExecStart=\nExecStart=/b", "ExecStart=/usr/bin/smcr run -- /b", 0},
		{"enabled already", "ExecStart=/a\n# /etc/systemd/system/x.service.d/zz-smcr.conf\n[Service]\nExecStart=\nExecStart=/usr/bin/smcr run -- /a\nExecPaths=/x", "ExecStart=/usr/bin/smcr run -- /a", 0},
		{"only executable", "ExecStart=/a\nNoExecPaths=/\nExecPaths=/a", "ExecStart=/usr/bin/smcr run -- /a\nExecPaths=/usr/bin/smcr", 0},
		{"filter", "ExecStart=/a\nSystemCallFilter=@system-service", "ExecStart=/usr/bin/smcr run -- /a\nSystemCallFilter=" + calls, 1},
		{"no filter any more", "ExecStart=/a\nSystemCallFilter=@system-service\nSystemCallFilter=", "ExecStart=/usr/bin/smcr run -- /a", 0},
		{"families", "ExecStart=/a\nRestrictAddressFamilies=AF_INET AF_INET6\nRestrictAddressFamilies=AF_UNIX", "ExecStart=/usr/bin/smcr run -- /a\nRestrictAddressFamilies=AF_NETLINK", 0},
		{"no family", "ExecStart=/a\nRestrictAddressFamilies=none", "ExecStart=/usr/bin/smcr run -- /a\nRestrictAddressFamilies=AF_NETLINK AF_UNIX", 0},
		{"families forbidden", "ExecStart=/a\nRestrictAddressFamilies=~AF_NETLINK AF_PACKET", "ExecStart=/usr/bin/smcr run -- /a\nRestrictAddressFamilies=AF_NETLINK", 0},
		{"families forbidden and permitted", "ExecStart=/a\nRestrictAddressFamilies=~AF_NETLINK\nRestrictAddressFamilies=AF_NETLINK", "ExecStart=/usr/bin/smcr run -- /a", 0},
		{"capabilities of root", "ExecStart=/a\nCapabilityBoundingSet=CAP_SETUID", "ExecStart=/usr/bin/smcr run -- /a\n# For a program that changes its user.\nCapabilityBoundingSet=CAP_SYS_PTRACE", 1},
		{"capabilities of a user", "User=redis\nExecStart=/a\nCapabilityBoundingSet=CAP_SETUID", "ExecStart=/usr/bin/smcr run -- /a", 0},
		{"hidden sockets", "ExecStart=/a\nTemporaryFileSystem=/run:ro /x", "ExecStart=/usr/bin/smcr run -- /a\n# The sockets of the stack.\nBindReadOnlyPaths=-/run/smcr", 0},
		{"forking", "Type=forking\nPIDFile=/run/a.pid\nExecStart=/a", "ExecStart=/usr/bin/smcr run -- /a", 0},
		{"forking without file", "Type=forking\nExecStart=/a", "ExecStart=/usr/bin/smcr run -- /a\n# The launcher is a process of the unit, too, so systemd cannot guess the main one.\nPIDFile=/run/found.pid", 0},
		{"a login", "ExecStart=/usr/sbin/sshd -D", "ExecStart=/usr/bin/smcr run -- /usr/sbin/sshd -D", 1},
	} {
		d, err := New(unit("x.service", "# /lib/systemd/system/x.service\n[Unit]\nExecStart=/no\n[Service]\n"+c.text+"\n"), smcr, "", func() string { return "/run/found.pid" })
		_, got, _ := strings.Cut(d.Text, "[Service]\nExecStart=\n")
		if err != nil || got != c.want+"\n" || len(d.Notes) != c.notes {
			t.Errorf("%s: %v, notes %q\n%s\nwant\n%s", c.name, err, d.Notes, got, c.want)
		}
	}
	d, _ := New(unit("a@b.service", "[Service]\nType=forking\nExecStart=/a"), smcr, "smcr@ns.service", func() string { return "" })
	if len(d.Notes) != 1 || !strings.Contains(d.Text, "[Unit]\n# The stack is there before the program listens.\nWants=smcr@ns.service\nAfter=smcr@ns.service\n") || !strings.HasPrefix(d.Text, "# Made by 'smcr service enable a@b'.") {
		t.Errorf("%q\n%s", d.Notes, d.Text)
	}
}

// TestPIDFileStays: a unit that is enabled again while it is stopped keeps the file that was found
// while it ran.
func TestPIDFileStays(t *testing.T) {
	s := systemd{etc: t.TempDir(), proc: "/proc"}
	u := unit("x.service", "[Service]\nType=forking\nExecStart=/a", "MainPID", "0")
	again := func() DropIn {
		t.Helper()
		d, err := New(u, smcr, "", func() string { return s.mainPIDFile(u) })
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := again(); strings.Contains(d.Text, "PIDFile=/") || len(d.Notes) != 1 {
		t.Errorf("a unit that was never enabled: %q\n%s", d.Notes, d.Text)
	}
	running, err := New(u, smcr, "", func() string { return "/run/x/x.pid" })
	if err != nil || !strings.Contains(running.Text, "PIDFile=/run/x/x.pid\n") {
		t.Fatalf("%v\n%s", err, running.Text)
	}
	if _, err := s.write(u.Name, running.Text); err != nil {
		t.Fatal(err)
	}
	if d := again(); d.Text != running.Text || len(d.Notes) != 0 {
		t.Errorf("enabled again: %q\n%s\nbefore\n%s", d.Notes, d.Text, running.Text)
	}
}

// TestNewRefuses checks units that cannot be put under smcr run, and that the error says why.
func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		text, smcr string
		props      []string
		want       error
		says       string
	}{
		{"", smcr, []string{"LoadState", "not-found"}, ErrNotFound, "x.service"},
		{"", smcr, []string{"LoadState", "masked"}, ErrUnfit, "unmask"},
		{"", smcr, []string{"LoadState", "bad-setting", "LoadError", "line 3"}, ErrUnfit, "line 3"},
		{"ExecStart=/a", smcr, []string{"Transient", "yes"}, ErrUnfit, "systemd-run"},
		{"", smcr, nil, ErrNoProgram, "x.service"},
		{"ExecStart=/bin/true", smcr, []string{"ConsistsOf", "x@1.service x.socket x@2.service"}, ErrNoProgram, "enable x@1 x@2"},
		{"ExecStart=@/usr/sbin/a b", smcr, nil, ErrUnfit, "another name"},
		{"ExecStart=/usr/local/bin/smcr run -- /a", smcr, nil, ErrUnder, "systemctl cat x"},
		{"ExecStart=-smc_run /a", smcr, nil, ErrUnder, "systemctl cat x"},
		{"ExecStart=/a\nRootDirectory=/srv", smcr, nil, ErrUnfit, "--install"},
		{"ExecStart=/a\nPrivateNetwork=yes", smcr, nil, ErrUnfit, "no network"},
		{"ExecStart=/a\nProtectHome=yes", "/home/u/smcr", nil, ErrUnfit, "/usr/local/bin"},
		{"ExecStart=/a\nPrivateTmp=true", "/tmp/smcr", nil, ErrUnfit, "PrivateTmp"},
		{"ExecStart=/a\nInaccessiblePaths=-/opt", "/opt/smcr/smcr", nil, ErrUnfit, "InaccessiblePaths=/opt"},
		{"ExecStart=/a", "/opt/my smcr", nil, ErrUnfit, "path"},
	} {
		d, err := New(unit("x.service", "[Service]\n"+c.text, c.props...), c.smcr, "", nil)
		if !errors.Is(err, c.want) || err == nil || !strings.Contains(err.Error(), c.says) || d.Text != "" {
			t.Errorf("%q, %q: %v %q, want %v with %q", c.text, c.props, err, d.Text, c.want, c.says)
		}
	}
	for _, fits := range []string{"ExecStart=/a\nProtectHome=read-only", "ExecStart=/a\nProtectHome=no", "ExecStart=/a\nPrivateNetwork=yes\nNetworkNamespacePath=/run/netns/x"} {
		if _, err := New(unit("x.service", "[Service]\n"+fits), "/home/u/smcr", "", nil); err != nil {
			t.Errorf("%q: %v", fits, err)
		}
	}
}

// FuzzCat: no text of unit files makes a drop-in file with a line that is not one of its own.
func FuzzCat(f *testing.F) {
	f.Add("# /lib/x\n[Service]\nExecStart=/a \\\n;c\n -b\nType=forking\n")
	f.Add("[Service]\nExecStart=/a\rExecStartPre=+/b\n\\\n\\")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := New(unit("x.service", text), smcr, "", func() string { return "" })
		if err != nil {
			return
		}
		for line := range strings.Lines(d.Text) {
			switch name, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); name {
			case "", "[Service]", "ExecStart", "ExecPaths", "SystemCallFilter", "RestrictAddressFamilies", "CapabilityBoundingSet", "BindReadOnlyPaths":
			default:
				if !strings.HasPrefix(line, "# ") || strings.ContainsAny(line, "\r") {
					t.Errorf("line %q of\n%s", line, d.Text)
				}
			}
		}
	})
}
