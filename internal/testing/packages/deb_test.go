// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// toolNames are the names of the program: its own, and those of the programs of smc-tools.
var toolNames = []string{"smcr", "smcd", "smcss", "smc_pnet", "smc_run", "smc_rnics", "smc_chk", "smc_dbg"}

// program is where the packages have it.
const programPath = "/usr/libexec/smcr/smcr"

// debTools are what the tests of the Debian package run on this computer.
var debTools = []string{"debootstrap", "nsenter", "unshare", "apt-get", "apt-config", "make", "git", "dpkg-deb"}

// TestDebian installs the Debian package on a new Debian without systemd, as in a container. It
// does there what docs/first-steps.md says, upgrades the package while a connection is open,
// removes it and purges it.
func TestDebian(t *testing.T) {
	need(t, debTools...)
	m := boot(t, "chroot")
	a, b := m.hosts()
	a.must("dpkg --purge systemd")
	before := m.list()
	first, second := m.put(pack(t, "deb", older)), m.put(pack(t, "deb", newer))

	if out := a.must("dpkg -i " + first); strings.Contains(out, "arning") {
		t.Errorf("the installation warns:\n%s", out)
	}
	wantInstalled(a, pack(t, "deb", older))
	wantConfigFile(a)

	// A new user.
	follow(t, "docs/first-steps.md", a, b)
	sum := a.makeBig()
	b.download("smcr run -- curl -s", sum)
	b.download("smc_run curl -s", sum)

	// An upgrade while a stack serves a connection. Enter at the question of dpkg keeps the
	// configuration.
	hold := b.slow()
	if out := b.must("smcr linkgroup list && smcss -a"); !strings.Contains(out, "CLNT") || !strings.Contains(out, addressA+":80") {
		t.Errorf("an open connection is not listed:\n%s", out)
	}
	a.must("smcr pnet add NET1 -I eth0 && smcr export >/etc/smcr/smcr.yaml")
	mine := a.must("cat /etc/smcr/smcr.yaml")
	stacks := a.stack() + " " + b.stack()
	a.must("echo | dpkg -i " + second)
	if now := a.must("cat /etc/smcr/smcr.yaml"); now != mine {
		t.Errorf("the upgrade has changed the configuration to\n%s", now)
	}
	if other := a.must("cat /etc/smcr/smcr.yaml.dpkg-dist"); !strings.HasSuffix(other+"\n", newDefault) {
		t.Errorf("the configuration of the new release is not beside the old one:\n%s", other)
	}
	wantInstalled(a, pack(t, "deb", newer))
	if now := a.stack() + " " + b.stack(); now != stacks {
		t.Errorf("stacks after the upgrade: %q, before %q", now, stacks)
	}
	b.download("smcr run -- curl -s", sum)
	// Without systemd, an administrator starts the new stack.
	takeover := b.start("exec smcr serve --takeover")
	takeover.wantOutput("msg=serving")
	if now := strings.Fields(b.stack()); len(now) != 2 {
		t.Errorf("stacks after the takeover: %q, want the old and the new one", now)
	}
	b.download("smcr run -- curl -s", sum)
	hold.finish(sum)

	// A removal leaves the configuration.
	a.must("nginx -s quit; while [ -e /run/nginx.pid ]; do sleep 0.1; done")
	if out := a.must("dpkg -r smcr"); strings.Contains(out, "arning") {
		t.Errorf("the removal warns:\n%s", out)
	}
	used := []string{"/var/www/html", "/var/lib/nginx"}
	m.list().wantSame(t, before, slices.Concat(used, userFiles, stackFiles, []string{"/etc/smcr"})...)
	if now := a.must("cat /etc/smcr/smcr.yaml && getent passwd smcr"); !strings.HasPrefix(now, mine) {
		t.Errorf("the removal has changed the configuration: %s", now)
	}
	// A purge leaves nothing.
	a.must("dpkg -P smcr")
	m.list().wantSame(t, before, used...)
	if out, err := a.try("dpkg -s smcr"); err == nil {
		t.Errorf("after the purge: %s", out)
	}
}

// wantInstalled checks what the package has installed.
func wantInstalled(h host, file string) {
	h.t.Helper()
	// dpkg knows the checksums of all files.
	if out := h.must("dpkg -V smcr"); strings.Trim(strings.ReplaceAll(out, "??5?????? c /etc/smcr/smcr.yaml", ""), "\n") != "" {
		h.t.Errorf("dpkg -V smcr: %s", out)
	}
	want := output(h.t.(*testing.T), "dpkg-deb", "--field", file, "Version")
	if got := h.must("dpkg-query -W -f='${Version} ${Status}' smcr"); got != strings.TrimSpace(want)+" install ok installed" {
		h.t.Errorf("installed is %q, want %s", got, want)
	}
	wantModes(h, h.must("dpkg -L smcr"))
	wantNames(h)
	wantUnits(h)
	wantUser(h)
}

// wantModes checks the owners and the modes of files and directories that a package has.
func wantModes(h host, list string) {
	h.t.Helper()
	files := strings.Fields(list)
	if len(files) < 50 {
		h.t.Errorf("the package has only %d files", len(files))
	}
	for _, name := range files {
		if name == "/." {
			continue
		}
		d, err := describe(h.path(name))
		if err != nil {
			h.t.Error(err)
			continue
		}
		want := "-rw-r--r-- 0:0 "
		switch {
		case strings.HasPrefix(d, "d"):
			want = "drwxr-xr-x 0:0 "
		case strings.HasPrefix(d, "L"):
			want = "Lrwxrwxrwx 0:0 "
		case strings.HasPrefix(name, "/usr/libexec/smcr/"):
			want = "-rwxr-xr-x 0:0 "
		}
		if !strings.HasPrefix(d, want) {
			h.t.Errorf("%s: %s, want %s", name, d, want)
		}
		// What a package has under a name that smc-tools has too is an alternative.
		if base := filepath.Base(name); slices.Contains(toolNames, base) && strings.HasPrefix(name, "/usr/bin/") {
			h.t.Errorf("%s is in the package", name)
		}
	}
}

// wantNames checks that all names of the program, their manual pages and completions are there,
// and lead to files of the package.
func wantNames(h host) {
	h.t.Helper()
	want := map[string]string{
		"/usr/share/zsh/site-functions/_smcr":            "/usr/share/zsh/site-functions/_smcr",
		"/usr/share/fish/vendor_completions.d/smcr.fish": "/usr/share/fish/vendor_completions.d/smcr.fish",
	}
	completions := "/usr/share/bash-completion/completions/"
	for _, name := range toolNames {
		want["/usr/bin/"+name] = programPath
		want[completions+name] = "/usr/share/smcr/bash-completion/" + name
	}
	pages, err := filepath.Glob(filepath.Join(root, "man/*.[1-8]"))
	if err != nil || len(pages) < 20 {
		h.t.Fatalf("manual pages: %q, %v", pages, err)
	}
	sources := map[string]string{}
	for _, page := range pages {
		base := filepath.Base(page)
		sources[fmt.Sprintf("/usr/share/man/man%s/%s.gz", base[len(base)-1:], base)] = page
	}
	paths := slices.Sorted(maps.Keys(want))
	paths = append(paths, slices.Sorted(maps.Keys(sources))...)
	real := strings.Split(h.must("for f in "+strings.Join(paths, " ")+"; do readlink -e $f || echo missing; done"), "\n")
	if len(real) != len(paths) {
		h.t.Fatalf("readlink of %q: %q", paths, real)
	}
	for i, path := range paths {
		page := sources[path]
		switch {
		case real[i] == "missing":
			h.t.Errorf("%s is missing", path)
		case page == "" && real[i] != want[path]:
			h.t.Errorf("%s is %s, want %s", path, real[i], want[path])
		case page != "":
			source, err := os.ReadFile(page)
			if err != nil {
				h.t.Fatal(err)
			}
			if got := gunzip(h.t, h.path(real[i])); got != string(source) {
				h.t.Errorf("%s is not %s", path, page)
			}
		}
	}
	// A name alone decides which program it is.
	out := h.must("type -P " + strings.Join(toolNames, " ") + "; smcr --version; smcss --version; set -e; for f in " + completions + "smc*; do . $f; done; complete -p " + strings.Join(toolNames, " "))
	if !regexp.MustCompile(`(?s)^(/usr/bin/\w+\n){8}smcr \S+ \(v.*\)\nsmcss utility, smc-tools-[\d.]+\n(complete [^\n]*\n?){8}$`).MatchString(out) {
		h.t.Errorf("names: %s", out)
	}
}

// gunzip returns the content of a compressed file.
func gunzip(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantUnits checks that the units start the installed program, and that an installation has
// neither enabled nor started them.
func wantUnits(h host) {
	h.t.Helper()
	for _, unit := range []string{"smcr.service", "smcr@.service", "smcr-run.service", "smcr-apply.service", "smcr-exporter.service"} {
		text := h.must("cat /usr/lib/systemd/system/" + unit)
		for line := range strings.Lines(text) {
			if key, value, _ := strings.Cut(line, "="); strings.HasPrefix(key, "Exec") && !strings.Contains(value, programPath+" ") {
				h.t.Errorf("%s: %s", unit, line)
			}
		}
	}
	if out := h.must("find /etc/systemd /run/systemd -type l -name '*smcr*' 2>/dev/null; true"); out != "" {
		h.t.Errorf("a unit is enabled: %s", out)
	}
}

// wantUser checks the user and the group of the stack.
func wantUser(h host) {
	h.t.Helper()
	f := strings.Split(h.must("getent passwd smcr"), ":")
	if len(f) != 7 || f[4] != "SMC-R stack in user space" || f[5] != "/" || f[6] != "/usr/sbin/nologin" {
		h.t.Errorf("the user is %q", f)
	}
	if got := h.must("id -gn smcr; id -Gn smcr; [ $(id -u smcr) -lt 1000 ] && echo system"); got != "smcr\nsmcr\nsystem" {
		h.t.Errorf("the group of the user is %q", got)
	}
}

// wantConfigFile checks the configuration of a new installation, and that dpkg treats it as one.
func wantConfigFile(h host) {
	h.t.Helper()
	source, err := os.ReadFile(filepath.Join(root, "deploy/packages/smcr.yaml"))
	if err != nil {
		h.t.Fatal(err)
	}
	if got := h.must("cat /etc/smcr/smcr.yaml") + "\n"; got != string(source) {
		h.t.Errorf("the configuration is\n%s", got)
	}
	if got := h.must("dpkg-query -W -f='${Conffiles}' smcr"); !strings.HasPrefix(strings.TrimSpace(got), "/etc/smcr/smcr.yaml ") {
		h.t.Errorf("configuration files of the package: %q", got)
	}
}
