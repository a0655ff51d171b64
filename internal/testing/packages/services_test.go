// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// A service is a unit of Debian that the test puts under smcr run.
type service struct {
	unit, pkg string
	config    string // commands before its first start
	port      int
	request   string // of printf
	answer    string // what is in the first bytes of the server
}

// services are in Debian's archive. The test tries the first ones, and all with allServicesEnv.
var services = []service{
	{"redis-server", "redis-server", `sed -i 's/^bind .*/bind 10.77.0.1/; s/^protected-mode yes/protected-mode no/' /etc/redis/redis.conf`, 6379, `PING\r\n`, "+PONG"},
	{"nginx", "nginx-light", "true", 80, `GET / HTTP/1.0\r\n\r\n`, "HTTP/1.1 200"},
	{"memcached", "memcached", `sed -i 's/^-l .*/-l 10.77.0.1/' /etc/memcached.conf`, 11211, `version\r\n`, "VERSION"},
	{"ssh", "openssh-server", "true", 22, "", "SSH-2.0"},
	{"apache2", "apache2", `sed -i 's/^Listen 80/Listen 8081/' /etc/apache2/ports.conf`, 8081, `GET / HTTP/1.0\r\n\r\n`, "HTTP/1.1 200"},
	{"haproxy", "haproxy", `printf 'listen f\n mode http\n bind 10.77.0.1:8082\n server s 10.77.0.1:80\n' >>/etc/haproxy/haproxy.cfg`, 8082, `GET / HTTP/1.0\r\n\r\n`, "HTTP/1."},
	{"postgresql@15-main", "postgresql", `echo "listen_addresses = '10.77.0.1'" >/etc/postgresql/15/main/conf.d/test.conf`, 5432, `\0\0\0\010\004\322\026\057`, "S"},
	{"mariadb", "mariadb-server", `sed -i 's/^bind-address.*/bind-address = 10.77.0.1/' /etc/mysql/mariadb.conf.d/50-server.cnf; mkdir -p /run/mysqld; chown mysql /run/mysqld`, 3306, "", "hostB"},
}

// allServicesEnv makes the tests use all services: their files take a gigabyte and some minutes.
const allServicesEnv = "SMCR_TEST_ALL_SERVICES"

func testedServices() []service {
	if os.Getenv(allServicesEnv) != "" {
		return services
	}
	return services[:4]
}

// TestServices: smcr service has units of Debian use SMC-R, without a restart and without a change of the units, until it is told
// otherwise, whatever ends and comes again.
func TestServices(t *testing.T) {
	need(t, debTools...)
	a, b, _ := bootSystemd(t, "own")
	a.must("systemctl start systemd-journald-dev-log.socket systemd-journald.socket systemd-journald && systemd-tmpfiles --create || true")
	a.must("dpkg -i " + a.put(pack(t, "deb", newer)))
	a.must("systemctl enable --now " + strings.Join(stackUnits, " "))
	var rows []*tableRow
	for _, s := range testedServices() {
		t.Run(s.unit, func(t *testing.T) {
			a.in(t)
			a.must(s.config)
			a.must("systemctl restart " + s.unit)
			a.wantListens(s)
			unit, pid := a.must("systemctl cat "+s.unit), a.mainPID(s.unit)
			row := a.row(s.unit)
			rows = append(rows, row)
			out := a.must("smcr service enable " + s.unit)
			if !strings.Contains(out, "  - cgroup: /system.slice/") || !strings.Contains(out, "use SMC-R if the peer does") || strings.Contains(out, "restart") {
				t.Errorf("enable: %s", out)
			}
			if !strings.Contains(out, fmt.Sprintf("not verified: %s.service had no new connection within 2s: try 'smcr check ", s.unit)) || strings.Contains(out, "boot") {
				t.Errorf("enable says, without a connection and with a stack at boot: %s", out)
			}
			if again := a.must("smcr service enable --wait=0 " + s.unit); strings.Contains(again, "+ ") || strings.Contains(again, "- ") {
				t.Errorf("enabled twice: %s", again)
			}
			right := b.talk(s, true)
			if now := a.mainPID(s.unit); now != pid {
				t.Errorf("%s is process %s, and was %s", s.unit, now, pid)
				right = false
			}
			row.saw("enable", right, true)
			a.wantUnit(s)
			a.live(b, s, row)
			row.saw("stack killed", a.crashStack(b, s), true)
			pid = a.mainPID(s.unit)
			a.must("smcr service disable " + s.unit)
			right = b.talk(s, false)
			if now := a.mainPID(s.unit); now != pid {
				t.Errorf("after disable, %s is process %s, and was %s", s.unit, now, pid)
				right = false
			}
			row.saw("disable", right, false)
			if left := a.must("systemctl cat " + s.unit); left != unit {
				t.Errorf("the unit is\n%s\nand was\n%s", left, unit)
			}
			if log := a.must("journalctl --quiet --output=cat --unit=" + s.unit); strings.Contains(log, "smcr: ") {
				t.Errorf("the journal of %s has lines of smcr:\n%s", s.unit, log)
			}
			a.must("systemctl stop " + s.unit)
		})
	}
	// A unit that stands for others, one that does not exist, and one that was not enabled.
	for line, want := range map[string]string{
		"smcr service enable nosuch":                        "there is no unit nosuch.service",
		"smcr service disable cron":                         "cron.service was not enabled: see 'smcr service status'",
		"smcr service enable smcr":                          "is a stack or a part of smcr",
		"setpriv --reuid=nobody smcr service enable nginx":  "no permission to change units of systemd: run it as root",
		"setpriv --reuid=nobody smcr service disable nginx": "run it as root",
	} {
		if out, err := a.try(line); err == nil || !strings.Contains(out, want) || strings.Count(out, "\n") > 0 {
			t.Errorf("%s: %v, %q, want %q", line, err, out, want)
		}
	}
	a.bootServices(b, rows)
	wantTable(t, rows)
}

// in makes a subtest the one that fails when the machine does.
func (m *machine) in(t *testing.T) {
	before := m.t
	m.t = t
	t.Cleanup(func() { m.t = before })
}

// live lets a unit live through what happens to services. It uses SMC-R after each.
func (h host) live(b host, s service, row *tableRow) {
	h.t.Helper()
	row.used["reload"] = "–" // it has none
	for _, x := range [][2]string{
		{"restart", "systemctl restart " + s.unit},
		{"stop, start", "systemctl stop " + s.unit + " && systemctl start " + s.unit},
		{"reload", "systemctl reload " + s.unit},
	} {
		if x[0] == "reload" && h.must("systemctl show --value --property=CanReload "+s.unit) != "yes" {
			continue
		}
		h.must(x[1])
		h.wantListens(s)
		row.saw(x[0], b.talk(s, true), true)
	}
	pid := h.mainPID(s.unit)
	h.must("kill -KILL " + pid)
	state := ""
	if err := netnstest.Until(startTime, func() error {
		state = h.must("systemctl show --value --property=ActiveState " + s.unit)
		if now := h.mainPID(s.unit); now == pid || state == "activating" || state == "deactivating" {
			return fmt.Errorf("%s, main process %s", state, now)
		}
		return nil
	}); err != nil {
		h.t.Fatalf("%s after the end of its main process: %v", s.unit, err)
	}
	if state != "active" {
		h.must("systemctl reset-failed " + s.unit + "; systemctl start " + s.unit)
	}
	h.wantListens(s)
	row.saw("crash", b.talk(s, true), true)
}

// wantListens waits until a service listens: a unit may be active before its program runs.
func (h host) wantListens(s service) {
	h.t.Helper()
	if err := netnstest.Until(startTime, func() error {
		if out := h.must(fmt.Sprintf("ss -Hltn sport = :%d", s.port)); out == "" {
			return fmt.Errorf("%s does not listen", s.unit)
		}
		return nil
	}); err != nil {
		h.t.Error(err)
	}
}

// ask is a command that asks the service on host A, and prints the answer.
func (s service) ask() string {
	return fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/hostA/%d && printf "%s" >&3 && dd bs=4096 count=1 status=none <&3 | tr -d "\0"'`, s.port, s.request)
}

// talk uses a service on the other host, and wants SMC-R, or TCP. It reports whether that is so.
func (h host) talk(s service, smc bool) (right bool) {
	h.t.Helper()
	line, want := "smcr run -v --no-adapt -- "+s.ask(), "smcr: 1 connection over SMC-R, 0 over TCP"
	if !smc {
		want = "smcr: 0 connections over SMC-R, 1 over TCP"
	}
	// A unit may be active before it listens.
	if err := netnstest.Until(testkind.Patience, func() error {
		out, err := h.try(line)
		if !strings.Contains(out, s.answer) || !strings.Contains(out, want) {
			return fmt.Errorf("%w: %q", err, out)
		}
		return nil
	}); err != nil {
		h.t.Errorf("%s: %v", line, err)
		return false
	}
	return true
}

// wantUnit checks what smcr says about a unit that is enabled.
func (h host) wantUnit(s service) {
	h.t.Helper()
	for _, r := range h.services() {
		if r.Unit == s.unit+".service" {
			if !r.Enabled || !r.Attached || r.Active != "active" || fmt.Sprint(r.PID) != h.mainPID(s.unit) || r.SMCR < 1 {
				h.t.Errorf("status: %+v", r)
			}
			return
		}
	}
	h.t.Errorf("%s is not in the status", s.unit)
}

// A serviceRow is a unit in smcr service status.
type serviceRow struct {
	Unit, Active      string
	Enabled, Attached bool
	PID               int `json:"main_pid"`
	SMCR              int
}

// services returns what smcr service status says.
func (h host) services() (rows []serviceRow) {
	h.t.Helper()
	out := h.must("smcr service status -o json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	return rows
}
