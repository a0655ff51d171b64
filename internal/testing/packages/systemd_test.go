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

// TestDebianSystemd upgrades and removes the Debian package while systemd runs its units, the
// stack of the machine and that of a network namespace.
func TestDebianSystemd(t *testing.T) {
	need(t, debTools...)
	m := boot(t, "systemd")
	a, b := m.hosts()
	if err := netnstest.Until(startTime, func() error {
		out, err := a.try("systemctl is-system-running")
		if out != "running" {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	before := m.list()
	// The two stacks are of two machines, as those of other tests.
	for unit, name := range map[string]string{"smcr.service": a.name, "smcr@hostB.service": b.name} {
		dir := "/etc/systemd/system/" + unit + ".d"
		a.must("mkdir -p " + dir)
		text := fmt.Sprintf("[Service]\nEnvironment=SMCR_HOST_ID=%s SMCR_SYSCALL_FILTER=strict\nStandardOutput=append:/var/log/%s.log\nStandardError=append:/var/log/%[2]s.log\n", name, name)
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
	first, second := m.put(pack(t, "deb", older)), m.put(pack(t, "deb", newer))

	a.must("dpkg -i " + first)
	units := []string{"smcr.service", "smcr@hostB.service", "smcr-apply.service"}
	for _, unit := range units {
		out, _ := a.try("systemctl is-enabled " + unit + "; systemctl is-active " + unit)
		if out != "disabled\ninactive" {
			t.Errorf("%s after the installation: %q", unit, out)
		}
	}
	// An upgrade starts nothing that does not run.
	a.must("dpkg -i " + first)
	wantUnits(a)

	a.must("systemctl enable --now smcr.service smcr@hostB.service")
	a.start("smcr run -- nginx -g 'daemon off;'")
	sum := a.makeBig()
	b.download("smcr run -- curl -s", sum)
	hold := b.slow()

	// The upgrade.
	old := []string{a.mainPID("smcr.service"), a.mainPID("smcr@hostB.service")}
	a.must("dpkg -i " + second)
	now := []string{a.mainPID("smcr.service"), a.mainPID("smcr@hostB.service")}
	for i, unit := range units[:2] {
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
	b.download("smcr run -- curl -s", sum)
	hold.finish(sum)

	// The removal ends the stacks, and leaves what the administrator has enabled.
	if out := a.must("dpkg -r smcr"); strings.Contains(out, "arning") {
		t.Errorf("the removal warns:\n%s", out)
	}
	if left := a.stack() + b.stack(); left != "" {
		t.Errorf("stacks after the removal: %q", left)
	}
	enabled := []string{"/etc/systemd/system/multi-user.target.wants/smcr.service", "/etc/systemd/system/multi-user.target.wants/smcr@hostB.service"}
	used := []string{"/var/www/html", "/var/lib/nginx", "/etc/systemd/system/smcr.service.d", "/etc/systemd/system/smcr@hostB.service.d", "/run/nginx.pid"}
	left := []string{"/etc/smcr", "/run/smcr", "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"}
	m.list().wantSame(t, before, slices.Concat(enabled, used, left)...)
	// The next installation finds it again.
	a.must("dpkg -i " + second)
	if out := a.must("systemctl is-enabled smcr.service smcr@hostB.service"); out != "enabled\nenabled" {
		t.Errorf("after a removal and an installation: %q", out)
	}
	a.must("systemctl start smcr.service && dpkg -P smcr")
	m.list().wantSame(t, before, used...)
	if out := a.must("systemctl list-unit-files --no-legend 'smcr*'; systemctl is-system-running"); out != "running" {
		t.Errorf("after the purge: %s", out)
	}
}

// mainPID returns the main process of a unit, as the machine numbers it.
func (h host) mainPID(unit string) string {
	h.t.Helper()
	return h.must("systemctl show --value --property=MainPID " + unit)
}
