// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSystemdWireOnDemand: a stack that smcr run of root starts, which is of the user of the unit, takes connections at the devices, and
// programs of others have cgroups.
func TestSystemdWireOnDemand(t *testing.T) {
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	m := l.boot(l.B)
	l.serveWire(l.A)
	for _, user := range []string{"root", "nobody"} {
		out, err := m.asUser(user, "env", "SMCR_BOUNDARY=wire", "smcr", "run", "--mode", "user", "-v", "--", "/usr/bin/python3", "-c", wireClient, l.A.Addr(), "half")
		if err != nil || !strings.Contains(out, "right\n") {
			t.Errorf("%s: %v\n%s", user, err, out)
		}
		wantSummary(t, out, 1)
	}
	onDemand := m.must("pgrep", "-f", "serve --on-demand")
	uid := m.must("id", "-u", "smcr")
	if status := m.must("cat", "/proc/"+onDemand+"/status"); !strings.Contains(status, "\nUid:\t"+uid+"\t"+uid+"\t"+uid) || !strings.Contains(status, "\nCapEff:\t"+stackCaps) {
		t.Errorf("the stack on demand:\n%s", status)
	}
	runs := m.must("pgrep", "-f", "serve --runs")
	if status := m.must("cat", "/proc/"+runs+"/status"); !strings.Contains(status, "\nCapEff:\t0000000000000000") || !strings.Contains(status, "\nCapBnd:\t0000000000000000") {
		t.Errorf("the process that makes cgroups:\n%s", status)
	}
	m.wantNoRunsInside()
	// The units take over from both.
	m.must("bash", "-c", `printf '[Service]\nEnvironment=SMCR_BOUNDARY=wire\n' >/etc/systemd/system/smcr.service.d/wire.conf && systemctl daemon-reload`)
	m.must("systemctl", "start", "smcr.service")
	if out, err := m.asUser("nobody", "smcr", "run", "--mode", "user", "-v", "--", "/usr/bin/python3", "-c", wireClient, l.A.Addr(), "half"); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else {
		wantSummary(t, out, 1)
	}
	if s := m.must("systemctl", "show", "smcr-run.service", "--value", "--property=ActiveState"); s != "active" {
		t.Errorf("smcr-run.service is %s", s)
	}
	m.must("systemctl", "stop", "smcr.service")
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
