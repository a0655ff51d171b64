// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// stackUnits are the units of the two hosts of a test: the stack of the machine, and that of a
// network namespace.
var stackUnits = []string{"smcr.service", "smcr@hostB.service"}

// enabledUnits are the links that `systemctl enable` makes for them and for the exporter.
var enabledUnits = []string{
	"/etc/systemd/system/multi-user.target.wants/smcr.service",
	"/etc/systemd/system/multi-user.target.wants/smcr@hostB.service",
	"/etc/systemd/system/multi-user.target.wants/" + exporterUnit,
}

// exporterUnit is the unit of the exporter of metrics.
const exporterUnit = "smcr-exporter.service"

// usedFiles are what the tests with systemd change beside the package.
var usedFiles = []string{"/var/www/html", "/var/lib/nginx", "/run/nginx.pid", "/etc/systemd/system/smcr.service.d", "/etc/systemd/system/smcr@hostB.service.d"}

// userFiles change when a user is made, and stackFiles when a stack runs.
var (
	userFiles  = []string{"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"}
	stackFiles = []string{"/run/smcr"}
)

// bootSystemd starts a machine with systemd, and returns its hosts and its files. The kind is
// systemd or own.
func bootSystemd(t *testing.T, kind string) (a, b host, before listing) {
	t.Helper()
	m := boot(t, kind)
	a, b = m.hosts()
	a.wantRunning()
	before = m.list()
	// The two stacks are of two machines, as those of other tests.
	for unit, name := range map[string]string{stackUnits[0]: a.name, stackUnits[1]: b.name} {
		dir := "/etc/systemd/system/" + unit + ".d"
		a.must("mkdir -p " + dir)
		text := fmt.Sprintf("[Service]\nEnvironment=SMCR_HOST_ID=%s SMCR_SYSCALL_FILTER=strict\nStandardOutput=append:/var/log/%[1]s.log\nStandardError=append:/var/log/%[1]s.log\n", name)
		if err := os.WriteFile(m.path(dir+"/test.conf"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := a.try("tail -n 50 /var/log/host*.log; systemctl status 'smcr*'")
			t.Log(out)
		}
	})
	return a, b, before
}

// wantRunning waits until systemd has started all units, and none has failed.
func (h host) wantRunning() {
	h.t.Helper()
	if err := netnstest.Until(startTime, func() error {
		out, err := h.try("systemctl is-system-running")
		if out != "running" {
			failed, _ := h.try("systemctl --failed; systemctl list-jobs")
			return fmt.Errorf("%w: %s\n%s", err, out, failed)
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
}

// upgradeUnits starts the units of the installed package, upgrades the package while a download
// runs, and checks that the units have new stacks and that the download is complete.
func upgradeUnits(a, b host, upgrade func()) {
	t := a.t
	t.Helper()
	a.must("systemctl enable --now " + exporterUnit + " " + strings.Join(stackUnits, " "))
	a.start("smcr run -- nginx -g 'daemon off;'")
	sum := a.makeBig()
	b.download("smcr run -- curl -s", sum)
	hold := b.slow()

	old := []string{a.mainPID(stackUnits[0]), a.mainPID(stackUnits[1])}
	upgrade()
	now := []string{a.mainPID(stackUnits[0]), a.mainPID(stackUnits[1])}
	for i, unit := range stackUnits {
		if now[i] == old[i] || now[i] == "0" {
			t.Errorf("%s: process %s after the upgrade, before %s", unit, now[i], old[i])
		}
		if out := a.must("systemctl is-active " + unit + "; systemctl show --value --property=NRestarts " + unit); out != "active\n0" {
			t.Errorf("%s after the upgrade: %q", unit, out)
		}
	}
	if both := strings.Fields(b.stack()); len(both) != 2 || !slices.Contains(both, old[1]) || !slices.Contains(both, now[1]) {
		t.Errorf("stacks of host B: %q, want %s and %s", both, old[1], now[1])
	}
	// The link ends in "(deleted)" while the old program runs.
	if exe := a.must("readlink /proc/" + a.mainPID(exporterUnit) + "/exe"); !strings.HasSuffix(exe, programPath) {
		t.Errorf("the exporter runs %s after the upgrade", exe)
	}
	b.download("smcr run -- curl -s", sum)
	hold.finish(sum)
}

// wantNoStack checks that no stack runs, and no exporter.
func wantNoStack(hosts ...host) {
	for _, h := range hosts {
		h.t.Helper()
		if out, _ := h.try("systemctl is-active " + exporterUnit); out != "inactive" {
			h.t.Errorf("the exporter is %s", out)
		}
		if left := h.stack(); left != "" {
			h.t.Errorf("%s: stacks after the removal: %q", h.name, left)
		}
	}
}

// TestDebianSystemd upgrades and removes the Debian package while systemd runs its units.
func TestDebianSystemd(t *testing.T) {
	need(t, debTools...)
	a, b, before := bootSystemd(t, "systemd")
	first, second := a.put(pack(t, "deb", older)), a.put(pack(t, "deb", newer))

	a.must("dpkg -i " + first)
	for _, unit := range append(stackUnits, "smcr-apply.service", exporterUnit) {
		out, _ := a.try("systemctl is-enabled " + unit + "; systemctl is-active " + unit)
		if out != "disabled\ninactive" {
			t.Errorf("%s after the installation: %q", unit, out)
		}
	}
	// What does not run is not started by the next installation.
	a.must("dpkg -i " + first)
	wantUnits(a)
	wantNoStack(a, b)

	upgradeUnits(a, b, func() { a.must("dpkg -i " + second) })

	// The removal ends the stacks, and leaves what the administrator has enabled.
	if out := a.must("dpkg -r smcr"); strings.Contains(out, "arning") {
		t.Errorf("the removal says:\n%s", out)
	}
	wantNoStack(a, b)
	a.list().wantSame(t, before, slices.Concat(enabledUnits, usedFiles, userFiles, stackFiles, []string{"/etc/smcr"})...)
	// The next installation finds it again.
	a.must("dpkg -i " + second)
	if out := a.must("systemctl is-enabled " + exporterUnit + " " + strings.Join(stackUnits, " ")); out != "enabled\nenabled\nenabled" {
		t.Errorf("after a removal and an installation: %q", out)
	}
	a.must("systemctl start smcr.service && dpkg -P smcr")
	wantNoStack(a, b)
	a.list().wantSame(t, before, usedFiles...)
	if out := a.must("systemctl list-unit-files --no-legend 'smcr*'; systemctl is-system-running"); out != "running" {
		t.Errorf("after the purge: %s", out)
	}
}

// TestRPMSystemd upgrades and erases the RPM while systemd runs its units.
func TestRPMSystemd(t *testing.T) {
	need(t, append(debTools, "rpm")...)
	a, b, before := bootSystemd(t, "systemd")
	a.quiet("-i", "--nodeps", pack(t, "rpm", older))
	wantNoStack(a, b)
	upgradeUnits(a, b, func() { a.quiet("-U", "--nodeps", pack(t, "rpm", newer)) })
	a.quiet("-e", "smcr")
	wantNoStack(a, b)
	after := a.list()
	for _, link := range enabledUnits {
		if is := after[link]; is != "" {
			t.Errorf("%s after the removal: %s", link, is)
		}
	}
	// systemctl removes the directory with the last link.
	after.wantSame(t, before, slices.Concat(usedFiles, userFiles, stackFiles, []string{"/etc/systemd/system/multi-user.target.wants"})...)
	if out := a.must("systemctl list-unit-files --no-legend 'smcr*'; systemctl is-system-running"); out != "running" {
		t.Errorf("after the removal: %s", out)
	}
}

// mainPID returns the main process of a unit, as the machine numbers it.
func (h host) mainPID(unit string) string {
	h.t.Helper()
	return h.must("systemctl show --value --property=MainPID " + unit)
}
