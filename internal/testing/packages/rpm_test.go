// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rpm runs rpm of this computer on the files of the machine. The scripts of packages run in the
// machine. The dependencies are not checked, because rpm does not know Debian's packages.
func (m *machine) rpm(args ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	argv := append([]string{
		fmt.Sprintf("--target=%d", m.pid), "--mount", "--net", "--pid", "--cgroup", "--ipc", "--uts", "--",
		"rpm", "--root", filepath.Join(m.dir, m.name, "root"), "--dbpath", "/var/lib/rpm",
	}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	cmd.Env = m.environment()
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("rpm %s: %v\n%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), out)
	}
	return strings.TrimRight(string(out), "\n")
}

// TestRPM reads the RPM with Debian's rpm, and installs, upgrades and erases it with that on a
// new Debian, whose useradd and update-alternatives its scripts use. There is no machine of an
// RPM distribution here.
func TestRPM(t *testing.T) {
	need(t, append(debTools, "rpm")...)
	first, second := pack(t, "rpm", older), pack(t, "rpm", newer)
	readRPM(t, first)

	m := boot(t, "chroot")
	a, b := m.hosts()
	before := m.list()
	installed := func(version string) {
		t.Helper()
		if got := m.rpm("-q", "smcr"); got != "smcr-"+version+"-1."+rpmArch {
			t.Errorf("installed is %q", got)
		}
		wantModes(a, m.rpm("-ql", "smcr"))
		wantNames(a)
		wantUnits(a)
		wantUser(a)
	}

	// A configuration that nobody has changed is replaced, and goes with the package.
	m.quiet("-i", "--nodeps", first)
	installed(older)
	if out := m.rpm("-V", "--nodeps", "smcr"); out != "" {
		t.Errorf("rpm -V: %s", out)
	}
	a.start("smcr run -- nginx -g 'daemon off;'")
	sum := a.makeBig()
	b.download("smcr run -- curl -s", sum)
	m.quiet("-U", "--nodeps", second)
	installed(newer)
	if got := a.must("cat /etc/smcr/smcr.yaml") + "\n"; !strings.HasSuffix(got, newDefault) {
		t.Errorf("the configuration is still that of the old release:\n%s", got)
	}
	b.download("smcr run -- curl -s", sum)
	m.quiet("-e", "smcr")
	used := []string{"/var/www/html", "/var/lib/nginx", "/run/nginx.pid", "/run/smcr"}
	m.list().wantSame(t, before, append(userFiles, used...)...)
	if out := a.must("update-alternatives --get-selections | grep smc; getent passwd smcr"); strings.Count(out, "\n") > 0 {
		t.Errorf("alternatives and users after the removal: %s", out)
	}

	// A changed one stays.
	m.quiet("-i", "--nodeps", first)
	a.must("smcr pnet add NET1 -I eth0 && smcr export >/etc/smcr/smcr.yaml")
	mine := a.must("cat /etc/smcr/smcr.yaml")
	m.rpm("-U", "--nodeps", second) // says where the new one is
	if now := a.must("cat /etc/smcr/smcr.yaml"); now != mine {
		t.Errorf("the upgrade has changed the configuration to\n%s", now)
	}
	if other := a.must("cat /etc/smcr/smcr.yaml.rpmnew") + "\n"; !strings.HasSuffix(other, newDefault) {
		t.Errorf("the configuration of the new release is not beside the old one:\n%s", other)
	}
	m.rpm("-e", "smcr")
	if now := a.must("cat /etc/smcr/smcr.yaml.rpmsave"); now != mine {
		t.Errorf("the removal has saved the configuration\n%s", now)
	}
	m.list().wantSame(t, before, slices.Concat(userFiles, used, []string{"/etc/smcr"})...)
}

// quiet is rpm for a command that must not warn.
func (m *machine) quiet(args ...string) {
	m.t.Helper()
	if out := m.rpm(args...); strings.Contains(out, "arning") || strings.Contains(out, "rror") || strings.Contains(out, "ailed") {
		m.t.Errorf("rpm %s: %s", strings.Join(args, " "), out)
	}
}

// rpmArch is the name that RPM has for the architecture of the tests.
const rpmArch = "x86_64"

// readRPM checks what the file of an RPM says about itself.
func readRPM(t *testing.T, file string) {
	t.Helper()
	query := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(output(t, "rpm", append(append([]string{"-q", "-p", "--nosignature"}, args...), file)...))
	}
	if got := output(t, "rpm", "-K", "--nosignature", file); !strings.HasSuffix(got, ": digests OK\n") {
		t.Errorf("rpm -K: %s", got)
	}
	if got := query("--qf", "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE}"); got != "smcr "+older+" 1 "+rpmArch+" Apache-2.0" {
		t.Errorf("the RPM says that it is %q", got)
	}
	for _, want := range []string{"/bin/sh", "/usr/sbin/useradd", "/usr/sbin/update-alternatives"} {
		if got := strings.Fields(query("--requires")); !slices.Contains(got, want) {
			t.Errorf("the RPM does not require %s: %q", want, got)
		}
	}
	if got := query("--configfiles"); got != "/etc/smcr/smcr.yaml" {
		t.Errorf("configuration files: %q", got)
	}
	scripts := query("--scripts")
	for _, want := range []string{"postinstall scriptlet (using /bin/sh)", "preuninstall scriptlet (using /bin/sh)", "postuninstall scriptlet (using /bin/sh)"} {
		if !strings.Contains(scripts, want) {
			t.Errorf("no %s:\n%s", want, scripts)
		}
	}
	// Both packages have the same files. The RPM owns only directories of its own, and those that
	// several packages share: others belong to the package filesystem, with other modes.
	var files []string
	for line := range strings.Lines(query("--qf", `[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEFLAGS:fflags} %{FILENAMES}\n]`)) {
		f := strings.Fields(line)
		name := f[len(f)-1]
		if f[1] != "root:root" {
			t.Errorf("%s belongs to %s", name, f[1])
		}
		if name == "/etc/smcr/smcr.yaml" && (len(f) != 4 || f[2] != "cn") {
			t.Errorf("the configuration has the flags %q, want config(noreplace)", f[2:])
		}
		if strings.HasPrefix(f[0], "d") {
			if !strings.Contains(name, "/smcr") && !under([]string{"/usr/share/fish", "/usr/share/zsh"}, name) || f[0] != "drwxr-xr-x" {
				t.Errorf("the RPM owns the directory %s, %s", name, f[0])
			}
			continue
		}
		files = append(files, name)
	}
	var deb []string
	for line := range strings.Lines(output(t, "dpkg-deb", "--contents", pack(t, "deb", older))) {
		if f := strings.Fields(line); !strings.HasPrefix(line, "d") {
			deb = append(deb, strings.TrimPrefix(f[5], "."))
		}
	}
	slices.Sort(files)
	slices.Sort(deb)
	if !slices.Equal(files, deb) {
		t.Errorf("files of the RPM:\n%q\nof the Debian package:\n%q", files, deb)
	}
}
