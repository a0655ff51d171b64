// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// daemonServer is a server whose process has no ancestor that is left: it forks twice.
const daemonServer = `
import os, socket, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open("/tmp/why.pid", "w").write(str(os.getpid()))
l = socket.create_server((sys.argv[1], 7071))
time.sleep(600)
`

// TestWhyService: for a service that is not under smcr the advice is to enable it. Then it announces, without a restart.
func TestWhyService(t *testing.T) {
	l := newLab(t, "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	m.must("systemctl", "start", "smcr.service")
	s := &unitTest{machine: m, t: t}
	s.write("why.py", daemonServer)
	program := "/usr/bin/python3 /run/systemd/system/why.py " + l.A.Addr()
	s.write("why.service", "[Service]\nType=forking\nPIDFile=/tmp/why.pid\nExecStart="+program+"\n")
	m.must("systemctl", "start", "why.service")
	want := func(texts ...string) {
		t.Helper()
		var out string
		if err := netnstest.Until(startTime, func() (err error) {
			if out, err = m.run("smcr", "why", ":7071"); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			for _, text := range texts {
				if !strings.Contains(out, text) {
					return fmt.Errorf("no %q in\n%s", text, out)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	want("why.service\n", "Announces:    nothing", "'smcr service enable ", " why.service'", "'smcr explain not-under-run'")
	m.must("smcr", "service", "enable", "why")
	want("why.service", "Announces:    SMC-R by the user-space stack\n")
	pid := m.must("cat", "/tmp/why.pid")
	if out := m.must("smcr", "why", pid); !strings.Contains(out, "process "+pid+",") || !strings.Contains(out, ":7071") {
		t.Errorf("smcr why %s:\n%s", pid, out)
	}
}
