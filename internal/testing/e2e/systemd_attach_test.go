// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// wireUnit is a unit of a stack that takes connections at the devices. It is root's, and has no sandbox.
const wireUnit = `[Service]
Type=notify
ExecStart=/usr/local/bin/smcr serve --takeover --no-default-eid
Restart=always
RestartSec=100ms
`

const nginxConf = `daemon off;
worker_processes 1;
pid /tmp/nginx.pid;
error_log stderr;
events { worker_connections 64; }
http {
	access_log off;
	client_body_temp_path /tmp/body;
	proxy_temp_path /tmp/proxy;
	fastcgi_temp_path /tmp/fastcgi;
	uwsgi_temp_path /tmp/uwsgi;
	scgi_temp_path /tmp/scgi;
	server { listen %s:80; return 200 "hello\n"; }
}
`

// TestServiceAttached has services of systemd use SMC-R without a restart and without a change of their units: nginx, and a program whose
// socket systemd makes. It lasts, whatever ends and comes again.
func TestServiceAttached(t *testing.T) {
	l := newLab(t, "unshare", "nginx", "curl", "/usr/bin/python3")
	l.bare = true // on B
	m := &attachedUnits{machine: l.boot(l.A), t: t}
	s := &unitTest{machine: m.machine, t: t}
	s.write("smcr.service", wireUnit)
	s.write("nginx.conf", fmt.Sprintf(nginxConf, l.A.Addr()))
	s.write("nginx.service", "[Service]\nExecStart=/usr/sbin/nginx -e stderr -c /run/systemd/system/nginx.conf\nExecReload=/bin/kill -HUP $MAINPID\n")
	s.write("server.py", activatedServer)
	s.write("t.socket", fmt.Sprintf("[Socket]\nListenStream=%s:7\n", l.A.Addr()))
	s.write("t.service", "[Service]\nDynamicUser=yes\nPrivateNetwork=yes\nExecStart=/usr/bin/python3 /run/systemd/system/server.py\n")
	s.write("lonely.service", "[Service]\nPrivateNetwork=yes\nExecStart=/bin/sleep 600\n")
	s.write("elsewhere.service", "[Service]\nNetworkNamespacePath=/proc/self/ns/net\nExecStart=/bin/sleep 600\n")
	m.must("systemctl", "start", "nginx.service", "t.socket")
	// Enabled before there is a stack, it is in the configuration.
	m.must("smcr", "service", "enable", "nginx")
	m.must("systemctl", "start", "smcr.service")
	l.serve(l.B)
	pid := m.must("systemctl", "show", "nginx.service", "--value", "--property=MainPID")
	m.want("nginx.service", true)
	m.want("t.service", false)
	for range 2 { // again changes nothing
		if out := m.must("smcr", "service", "enable", "t", "nginx"); strings.Contains(out, "restart") {
			t.Errorf("enable: %s", out)
		}
	}
	all := func(smc bool) {
		t.Helper()
		for _, unit := range []string{"nginx.service", "t.service"} {
			m.want(unit, smc)
		}
	}
	all(true)
	if now := m.must("systemctl", "show", "nginx.service", "--value", "--property=MainPID"); now != pid {
		t.Errorf("nginx is process %s, and was %s", now, pid)
	}
	if out := m.must("smcr", "service", "status"); !strings.Contains(out, "nginx.service") || !strings.Contains(out, "t.socket") {
		t.Errorf("status:\n%s", out)
	}
	for _, again := range []string{
		"systemctl reload nginx.service",
		"systemctl restart nginx.service t.service",
		"systemctl stop t.service t.socket && systemctl start t.socket",
		"systemctl restart smcr.service",
		// A connection that is made meanwhile would make the peer believe for a minute that nobody here speaks SMC.
		`pid=$(systemctl show smcr.service --value -p MainPID) && kill -9 $pid
		 until [ "$(systemctl show smcr.service --value -p MainPID)" != $pid ] && systemctl is-active smcr.service; do sleep 0.1; done`,
		"systemctl daemon-reexec",
		// Of a machine that starts again, /run is empty.
		`file=$(smcr info -o json | grep -o '/run/smcr/[^"]*yaml') && systemctl stop smcr.service && rm $file && systemctl start smcr.service`,
	} {
		m.must("bash", "-c", again)
		t.Log(again)
		all(true)
	}
	m.must("smcr", "service", "disable", "nginx", "t.service")
	all(false)
	m.must("systemctl", "restart", "smcr.service")
	all(false)
	if out := m.must("smcr", "service", "status"); strings.Contains(out, "nginx") {
		t.Errorf("status after disable:\n%s", out)
	}
	// The socket alone.
	m.must("smcr", "service", "enable", "t.socket")
	m.want("t.service", true)
	for line, want := range map[string]string{
		"service enable lonely":    "lonely.service has PrivateNetwork=yes, and no network",
		"service enable nosuch":    "there is no unit nosuch.service",
		"service disable nginx":    "nginx.service was not enabled",
		"service enable elsewhere": "",
		"service enable smcr":      "is a stack or a part of smcr",
	} {
		if out, err := m.run(append([]string{"smcr"}, strings.Fields(line)...)...); (err == nil) != (want == "") || !strings.Contains(out, want) {
			t.Errorf("smcr %s: %v, %q, want %q", line, err, out, want)
		}
	}
	if out := m.must("bash", "-c", "test ! -e /etc/smcr/smcr.yaml && cat /etc/smcr/smcr.yaml.d/50-services.yaml; ls -d /etc/systemd/system/*.d"); strings.Contains(out, "nginx") || !strings.Contains(out, "  - cgroup: /system.slice/t.socket") {
		t.Errorf("%s", out)
	}
}

// attachedUnits are units of a machine whose programs keep their sockets.
type attachedUnits struct {
	*machine
	t *testing.T
}

// smcr returns how many connections of a unit and its sockets use SMC-R.
func (m *attachedUnits) smcr(unit string) (n int) {
	m.t.Helper()
	var rows []struct{ SMCR int }
	out := m.must("smcr", "service", "status", unit, "-o", "json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		m.t.Fatal(err, out)
	}
	for _, r := range rows {
		n += r.SMCR
	}
	return n
}

// want has the program of a unit answer a client, and checks whether the connection uses SMC-R.
func (m *attachedUnits) want(unit string, smc bool) {
	m.t.Helper()
	// The unit, and the stack, may have just started.
	if err := netnstest.Until(startTime, func() error {
		before := m.smcr(unit)
		if unit == "t.service" {
			m.ask(true)
		} else if out, err := m.B.Output(m.t.Context(), "curl", "-sS", "--max-time", "10", "http://"+m.A.Addr()); err != nil || out != "hello\n" {
			status, _ := m.run("systemctl", "status", unit)
			return fmt.Errorf("%w: %s\n%s", err, out, status)
		}
		if got := m.smcr(unit) - before; (got == 1) != smc {
			return fmt.Errorf("%d connections of %s use SMC-R\n%s", got, unit, m.must("smcr", "program", "list", "-o", "wide"))
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
}
