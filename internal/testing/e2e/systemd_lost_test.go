// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestSystemdLost removes /run/smcr while the unit runs: there is no second stack, commands and
// smcr run say what has happened and what to do, and a restart of the unit mends it.
func TestSystemdLost(t *testing.T) {
	l := newLab(t, "setpriv", "unshare")
	m := l.boot(l.A)
	server := l.server()
	m.must("umount", "/run/smcr") // that of the tests' host
	m.must("systemctl", "start", "smcr.service")
	pid := m.show("MainPID")
	m.must("rm", "-rf", "/run/smcr")

	for _, argv := range [][]string{
		{"smcr", "serve"},
		{"smcr", "info"},
		{"smcr", "run", "--mode", "user", "--", "true"},
		{"setpriv", "--reuid=smcr", "--regid=smcr", "--clear-groups", "--inh-caps=+net_raw,+net_admin,+bpf", "--ambient-caps=+net_raw,+net_admin,+bpf", "smcr", "serve"},
	} {
		out, err := m.run(argv...)
		if !strings.Contains(out, "process "+pid) || !strings.Contains(out, "was removed") || !strings.Contains(out, "systemctl restart smcr") {
			if argv[0] == "setpriv" && strings.Contains(out, "no place for the sockets") {
				continue // a directory below /run is root's alone
			}
			t.Errorf("%q: %v\n%s", argv, err, out)
		}
	}
	if out, err := m.run("smcr", "run", "-v", "--", "true"); err != nil || !strings.Contains(out, "TCP") {
		t.Errorf("a program: %v\n%s", err, out)
	}
	if err := netnstest.Until(endTime, func() error {
		if all := m.must("pgrep", "-f", "^/usr/local/bin/smcr serve"); all != pid {
			return fmt.Errorf("stacks: %q, want process %s", strings.Fields(all), pid)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if s := m.show("ActiveState"); s != "active" || m.show("MainPID") != pid {
		t.Errorf("the unit is %s, process %s, before %s", s, m.show("MainPID"), pid)
	}

	m.must("systemctl", "restart", "smcr.service")
	if out := m.must("smcr", "info"); strings.Contains(out, "was removed") {
		t.Errorf("after a restart: %s", out)
	}
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	terminate(t, server)
}
