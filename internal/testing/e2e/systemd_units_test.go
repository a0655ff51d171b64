// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// webServer answers "hello" to HTTP at the address and port of its arguments.
const webServer = `
import socket, sys
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    c, _ = l.accept()
    c.recv(4096); c.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello\n"); c.close()
`

// perConnection is webServer for one connection, which it has as its standard input.
const perConnection = `
import sys
while sys.stdin.readline().strip(): pass
sys.stdout.write("HTTP/1.0 200 OK\r\n\r\nhello\n")
`

// boxedLines are what units forbid their programs: what it takes to use SMC-R is none of it.
const boxedLines = `NoNewPrivileges=yes
ProtectSystem=strict
PrivateTmp=yes
ProtectHome=yes
DynamicUser=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_INET AF_INET6
NoExecPaths=/
ExecPaths=/usr/bin /usr/lib /lib /lib64
IPAddressDeny=any
IPAddressAllow=%s
SocketBindDeny=any
SocketBindAllow=tcp
SystemCallFilter=@system-service
SystemCallFilter=~bpf
SystemCallErrorNumber=EPERM
CapabilityBoundingSet=
`

// A unitServer has units that answer HTTP at host A.
type unitServer struct {
	*machine
	t *testing.T
}

// newUnitServer starts systemd on host A, where web.py is webServer. Host B is to have a stack that announces for all its programs.
func newUnitServer(t *testing.T) (*lab, *unitServer, *unitTest) {
	t.Helper()
	l := newLab(t, "unshare", "curl", "/usr/bin/python3")
	l.bare = true // on B
	m := &unitServer{machine: l.boot(l.A), t: t}
	s := &unitTest{machine: m.machine, t: t}
	s.write("web.py", webServer)
	return l, m, s
}

// serve is the line of a unit that serves at the port that follows.
func (m *unitServer) serve() string {
	return "ExecStart=/usr/bin/python3 /run/systemd/system/web.py " + m.A.Addr() + " "
}

// get asks the server at a port of host A, until the answer came over SMC-R, or over TCP. Host B announces for all its programs.
func (m *unitServer) get(port int, smc bool) {
	m.t.Helper()
	if err := netnstest.Until(startTime, func() error {
		before := m.carried()
		out, err := m.B.Output(m.t.Context(), "curl", "-sS", "--max-time", "10", fmt.Sprintf("http://%s:%d", m.A.Addr(), port))
		if err != nil || out != "hello\n" {
			return fmt.Errorf("%w: %s", err, out)
		}
		if got := m.carried() - before; (got == 1) != smc {
			list, _ := m.run("smcr", "program", "list", "-o", "wide")
			return fmt.Errorf("port %d: %d connections over SMC-R, want SMC-R: %t\n%s", port, got, smc, list)
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
}

// carried returns how many connections of host A's units are SMC-R, 0 without a stack.
func (m *unitServer) carried() (n int) {
	m.t.Helper()
	out, err := m.run("smcr", "program", "list", "-o", "json")
	if err != nil {
		return 0
	}
	var list []struct{ SMCR int }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		m.t.Fatal(err, out)
	}
	for _, a := range list {
		n += a.SMCR
	}
	return n
}

// TestServiceKinds: a template stands for its instances, a slice for its units, and a socket unit for its service or for one
// service for each connection; a unit with a sandbox is like others. Nothing is restarted.
func TestServiceKinds(t *testing.T) {
	l, m, s := newUnitServer(t)
	s.write("smcr.service", wireUnit)
	s.write("inet.py", perConnection)
	serve := m.serve()
	s.write("web@.service", "[Service]\n"+serve+"%i\n")
	s.write("boxed.service", "[Service]\n"+serve+"8090\n"+fmt.Sprintf(boxedLines, l.B.Addr()))
	s.write("one.service", "[Service]\nSlice=workers-fast.slice\n"+serve+"8101\n")
	s.write("two.service", "[Service]\nSlice=workers.slice\n"+serve+"8102\n")
	s.write("shared@.service", "[Service]\nSlice=workers.slice\n"+serve+"%i\n")
	s.write("inet.socket", fmt.Sprintf("[Socket]\nListenStream=%s:8200\nAccept=yes\n", l.A.Addr()))
	s.write("inet@.service", "[Service]\nExecStart=/usr/bin/python3 /run/systemd/system/inet.py\nStandardInput=socket\nStandardOutput=socket\n")
	m.must("systemctl", "start", "smcr.service", "web@8081.service", "boxed.service", "one.service", "inet.socket")
	l.serve(l.B)
	pids := m.mainPIDs()
	for _, port := range []int{8081, 8090, 8101, 8200} {
		m.get(port, false)
	}
	// One instance, and then all of them, also one that comes later.
	m.must("smcr", "service", "enable", "--wait=0", "web@8081")
	m.must("systemctl", "start", "web@8082.service")
	m.get(8081, true)
	m.get(8082, false)
	m.must("smcr", "service", "enable", "--wait=0", "web@")
	m.must("systemctl", "start", "web@8083.service")
	for _, port := range []int{8081, 8082, 8083} {
		m.get(port, true)
	}
	// A slice, with the slices in it, and units that come later.
	m.must("smcr", "service", "enable", "--wait=0", "workers.slice")
	m.must("systemctl", "start", "two.service")
	m.get(8101, true)
	m.get(8102, true)
	// A service for each connection, whose first part is a socket unit.
	m.must("smcr", "service", "enable", "--wait=0", "inet@", "boxed")
	m.get(8200, true)
	m.get(8090, true)
	if now := m.mainPIDs(); now != pids {
		t.Errorf("processes %q, before %q", now, pids)
	}
	for _, again := range []string{"systemctl restart smcr.service", "systemctl stop workers.slice system-web.slice && systemctl start one web@8081"} {
		m.must("bash", "-c", again)
		for _, port := range []int{8081, 8101, 8200, 8090} {
			m.get(port, true)
		}
	}
	for line, want := range map[string]string{
		"enable shared@":                "in workers.slice, where others may be, too",
		"disable one":                   "is enabled by workers.slice",
		"enable user@":                  "there is no unit user@.service",
		"status one two":                "by workers.slice",
		"status web@":                   "system-web.slice",
		"status web@8081":               "web@8081.service",
		"show inet@":                    "/system.slice/system-inet.slice",
		"disable web@8081 --wait 1":     "unknown flag",
		"enable --wait=0 nosuch.socket": "there is no unit nosuch.socket",
	} {
		if out, _ := m.run(append([]string{"smcr", "service"}, strings.Fields(line)...)...); !strings.Contains(out, want) {
			t.Errorf("smcr service %s: %q, want %q", line, out, want)
		}
	}
	// systemctl's words for what can be completed.
	out := m.must("smcr", "__complete", "service", "enable", "")
	for _, name := range []string{"web@", "web@8081", "boxed", "inet.socket", "inet@", "workers.slice", "system-web.slice"} {
		if !strings.Contains("\n"+out, "\n"+name+"\n") {
			t.Errorf("%s is not completed:\n%s", name, out)
		}
	}
	m.must("smcr", "service", "disable", "web@", "web@8081", "workers.slice", "inet@", "boxed")
	for _, port := range []int{8081, 8101, 8200, 8090} {
		m.get(port, false)
	}
	if out := m.must("find", "/etc/smcr", "-type", "f"); out != "" {
		t.Errorf("left: %s", out)
	}
}

// mainPIDs returns the main processes of the services that ran before.
func (m *unitServer) mainPIDs() string {
	m.t.Helper()
	return strings.Join(strings.Fields(m.must("systemctl", "show", "--value", "--property=MainPID", "web@8081.service", "boxed.service", "one.service")), " ")
}

// TestServiceVerified: enable says what came of the next connections, of which there are some while it waits.
func TestServiceVerified(t *testing.T) {
	l, m, s := newUnitServer(t)
	s.write("web.service", "[Service]\n"+m.serve()+"80\n")
	m.must("systemctl", "start", "smcr.service", "web.service")
	l.serve(l.B)
	m.get(80, false)
	if out := m.enable("--wait=100ms"); !strings.Contains(out, "not verified: web.service had no new connection within 100ms: try 'smcr check "+l.A.Addr()+":80' on a peer") ||
		!strings.Contains(out, "as smcr.service is disabled: 'systemctl enable --now smcr'") {
		t.Errorf("nobody connects: %s", out)
	}
	asks := l.B.Go(t, "bash", "-c", "while curl -sS --max-time 10 http://"+l.A.Addr()+" >/dev/null; do sleep 0.1; done")
	out := m.enable("--wait=1m")
	asks.Kill()
	if !strings.Contains(out, "smcr: checked: since then, ") || !strings.Contains(out, " of web.service use") || strings.Contains(out, "TCP") {
		t.Errorf("somebody connects: %s", out)
	}
	m.must("systemctl", "stop", "web.service")
	if out := m.enable("--wait=1m"); !strings.Contains(out, "web.service does not run: its connections use SMC-R when it does") {
		t.Errorf("it does not run: %s", out)
	}
}

// enable enables web.service as an administrator does, who sees all cgroups of the machine. It returns what is printed.
func (m *unitServer) enable(flags ...string) string {
	m.t.Helper()
	out, err := m.asUser("root", append([]string{"smcr", "service", "enable", "web"}, flags...)...)
	if err != nil {
		m.t.Fatal(err, out)
	}
	return out
}

// TestServiceOnDemand: a service that was there before any stack uses the one that 'smcr run' starts, and that of the unit, which takes
// over from it. Without /run/smcr, there is one stack, too.
func TestServiceOnDemand(t *testing.T) {
	l, m, s := newUnitServer(t)
	s.write("web.service", "[Service]\n"+m.serve()+"80\n")
	m.must("umount", "/run/smcr") // that of the tests' host
	m.must("systemctl", "start", "web.service")
	l.serve(l.B)
	out := m.enable()
	if !strings.Contains(out, "as soon as there is a stack: 'systemctl enable --now smcr'") {
		t.Errorf("without a stack: %s", out)
	}
	// It is of no matter what has started the stack.
	_, _ = m.asUser("root", "smcr", "check", l.B.Addr())
	if out, err := m.asUser("root", "smcr", "run", "--mode=user", "--", "true"); err != nil {
		t.Fatal(err, out)
	}
	onDemand := m.must("pgrep", "-f", "serve --on-demand")
	m.get(80, true)

	m.must("systemctl", "enable", "--now", "smcr.service")
	m.get(80, true)
	first := m.show("MainPID")
	if first == onDemand || m.show("NRestarts") != "0" {
		t.Errorf("the unit is process %s after %s restarts, before %s", first, m.show("NRestarts"), onDemand)
	}
	m.must("rm", "-rf", "/run/smcr")
	for _, line := range []string{"smcr serve", "smcr serve --takeover", "smcr run --mode=user -- true", "smcr check " + l.B.Addr()} {
		if out, err := m.run("bash", "-c", line); err == nil || !strings.Contains(out, "was removed") {
			t.Errorf("%s: %v, %s", line, err, out)
		}
	}
	// The stack that is there goes on, although nobody can ask it.
	if out, err := m.B.Output(t.Context(), "curl", "-sS", "--max-time", "10", "http://"+m.A.Addr()); err != nil || out != "hello\n" {
		t.Errorf("without /run/smcr: %v, %s", err, out)
	}
	m.must("systemctl", "restart", "smcr.service")
	m.get(80, true)
	// One that has handed over ends after its last connection.
	testkind.Eventually(t, "there is one stack, that of the unit", func() (any, bool) {
		out, main := m.must("pgrep", "-f", "^/usr/local/bin/smcr serve --(takeover|on-demand)"), m.show("MainPID")
		return fmt.Sprintf("%q, want %s", out, main), out == main
	})
}
