// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"
)

// TestSystemdSandbox: programs of units use SMC-R within what systemd forbids them. Without AF_UNIX, or with a filter that forbids
// what the way to the stack needs, they are TCP, and one line says why. PrivateUsers= is in TestSandbox: the machine may make no such
// namespace.
func TestSystemdSandbox(t *testing.T) {
	l := newLab(t, "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	m.must("systemctl", "start", "smcr.service")
	l.serveWire(l.B)
	const (
		smc       = "smcr: 1 connection over SMC-R, 0 over TCP\n"
		noSummary = "smcr: there will be no summary: no process can wait for the program: "
		tcp       = "smcr: all connections over TCP: "
	)
	for _, c := range []struct{ name, properties, with, without string }{
		{"@system-service", "SystemCallFilter=@system-service", smc, ""},
		{"all at once", "SystemCallFilter=@system-service NoNewPrivileges=yes ProtectSystem=strict PrivateTmp=yes ProtectHome=yes MemoryDenyWriteExecute=yes " +
			"RestrictNamespaces=yes RestrictRealtime=yes RestrictSUIDSGID=yes LockPersonality=yes SystemCallArchitectures=native PrivateDevices=yes " +
			"ProtectKernelTunables=yes ProtectControlGroups=yes ProtectProc=invisible CapabilityBoundingSet=", smc, ""},
		{"families of the program and AF_UNIX", "RestrictAddressFamilies=AF_INET~AF_UNIX", smc, ""},
		{"families of the program", "RestrictAddressFamilies=AF_INET", tcp, tcp},
		{"no signalfd", "SystemCallFilter=~signalfd4 SystemCallErrorNumber=EPERM", noSummary + "signalfd4: operation not permitted\n", ""},
		{"no recvmsg", "SystemCallFilter=~recvmsg SystemCallErrorNumber=ENOSYS", tcp, tcp},
	} {
		for _, user := range []string{"root", "nobody"} {
			for _, verbose := range []string{"-v", "--no-adapt"} {
				t.Run(c.name+"/"+user+"/"+verbose, func(t *testing.T) {
					want := c.with
					if verbose != "-v" {
						want = c.without
					}
					s := &unitTest{machine: m, t: t, run: "/usr/local/bin/smcr run " + verbose + " --", user: user}
					s.write("client.py", wireClient)
					m.must("rm", "-f", "/run/t.out")
					w := l.watch()
					_, err := s.unit("/usr/bin/python3 -u /run/systemd/system/client.py "+l.B.Addr()+" half", "Type=oneshot\nStandardOutput=append:/run/t.out\nStandardError=inherit\n"+
						strings.ReplaceAll(strings.ReplaceAll(c.properties, " ", "\n"), "~AF_", " AF_")+"\n")
					carried := w.stop(t).roce.Payload > 2<<20
					out := m.must("cat", "/run/t.out") + "\n"
					if err != nil || !strings.Contains(out, "right\n") {
						status, _ := m.run("systemctl", "status", "t.service")
						t.Errorf("the program: %v\n%s\n%s", err, out, status)
					}
					said := slices.DeleteFunc(strings.SplitAfter(out, "\n"), func(s string) bool { return !strings.HasPrefix(s, "smcr: ") })
					if got := strings.Join(said, ""); !strings.HasPrefix(got, want) || want == "" && got != "" || want != smc && len(said) > 1 {
						t.Errorf("smcr run prints %q, want %q", got, want)
					}
					if carried != (want != tcp) {
						t.Errorf("over RoCE: %t", carried)
					}
				})
			}
		}
	}
}
