// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

var updateTasks = flag.Bool("update", false, "write what TestServices sees into docs/tasks.md")

// life is what a service manager sees of a service.
type life struct {
	Type, Main           string // of the unit; name of the main process
	Began                bool   // systemd knows when the main process began
	Reload               string // what is active after it: "same process", "another process" or "none"
	Stop, Left           string // state after systemctl stop; its processes
	Crash, CrashedStatus string // state some time after SIGKILL of the main process, and how that ended
}

// TestServices: smcr service puts units of Debian under smcr run. A service manager sees the
// same as without, and the service speaks SMC-R.
func TestServices(t *testing.T) {
	need(t, debTools...)
	a, b, _ := bootSystemd(t, "own")
	a.must("systemctl start systemd-journald-dev-log.socket systemd-journald.socket systemd-journald && systemd-tmpfiles --create || true")
	a.must("dpkg -i " + a.put(pack(t, "deb", newer)))
	a.must("systemctl enable --now " + strings.Join(stackUnits, " "))
	var table []string
	for _, s := range testedServices() {
		t.Run(s.unit, func(t *testing.T) {
			a.in(t)
			a.must(s.config)
			a.must("systemctl start " + s.unit)
			native := a.live(s)
			out := a.must("smcr service enable --restart " + s.unit)
			if !strings.Contains(out, "+ ExecStart=") || !strings.Contains(out, "runs under smcr run") {
				t.Errorf("enable: %s", out)
			}
			if again := a.must("smcr service enable " + s.unit); strings.Contains(again, "+ ") || strings.Contains(again, "- ") {
				t.Errorf("enabled twice: %s", again)
			}
			b.talk(s)
			under := a.live(s)
			if under != native {
				t.Errorf("with smcr run\n%+v, without\n%+v", under, native)
			}
			b.talk(s)
			a.wantUnit(s)
			a.crashStack(b, s)
			a.must("smcr service disable --restart " + s.unit)
			if left := a.must("systemctl cat " + s.unit); strings.Contains(left, "smcr") {
				t.Errorf("after disable:\n%s", left)
			}
			a.wantListens(s)
			if now := a.comm(a.mainPID(s.unit)); now != native.Main {
				t.Errorf("after disable, the main process is %s", now)
			}
			a.must("systemctl stop " + s.unit)
			if !t.Failed() {
				table = append(table, fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", s.unit, under.Type, under.Main, under.Reload, under.Stop, under.Crash))
			}
		})
	}
	// A unit that stands for others, one that does not exist, and one that systemd refuses.
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
	a.wantTakenBack()
	a.bootServices(b)
	if !t.Failed() && len(testedServices()) == len(services) {
		writeTasks(t, table)
	}
}

// in makes a subtest the one that fails when the machine does.
func (m *machine) in(t *testing.T) {
	before := m.t
	m.t = t
	t.Cleanup(func() { m.t = before })
}

// live lets a unit live through what happens to services.
func (h host) live(s service) (l life) {
	h.t.Helper()
	h.must("systemctl restart " + s.unit)
	h.wantListens(s)
	pid := h.mainPID(s.unit)
	l.Type = h.must("systemctl show --value --property=Type " + s.unit)
	l.Main = h.comm(pid)
	l.Began = h.must("systemctl show --value --property=ExecMainStartTimestampMonotonic "+s.unit) != "0"
	l.Reload = "none"
	if h.must("systemctl show --value --property=CanReload "+s.unit) == "yes" {
		h.must("systemctl reload " + s.unit)
		l.Reload = "another process"
		if h.mainPID(s.unit) == pid {
			l.Reload = "same process"
		}
	}
	h.must("systemctl stop " + s.unit)
	l.Stop = h.must("systemctl show --value --property=ActiveState,Result " + s.unit + " | paste -sd' '")
	l.Left = h.must("group=$(systemctl show --value --property=ControlGroup " + s.unit + "); [ -z \"$group\" ] || wc -l </sys/fs/cgroup$group/cgroup.procs")
	h.must("systemctl start " + s.unit)
	h.wantListens(s)
	pid = h.mainPID(s.unit)
	h.must("kill -KILL " + pid)
	if err := netnstest.Until(startTime, func() error {
		l.Crash = h.must("systemctl show --value --property=ActiveState " + s.unit)
		if now := h.mainPID(s.unit); now == pid || l.Crash == "activating" || l.Crash == "deactivating" {
			return fmt.Errorf("%s, main process %s", l.Crash, now)
		}
		return nil
	}); err != nil {
		h.t.Fatalf("%s after the end of its main process: %v", s.unit, err)
	}
	if l.Crash != "active" {
		l.CrashedStatus = h.must("systemctl show --value --property=ExecMainCode,ExecMainStatus,Result " + s.unit + " | paste -sd' '")
		h.must("systemctl reset-failed " + s.unit + "; systemctl start " + s.unit)
	}
	return l
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

// comm returns the name of a process.
func (h host) comm(pid string) string {
	h.t.Helper()
	return h.must("ps -o comm= -p " + pid)
}

// ask is a command that asks the service on host A, and prints the answer.
func (s service) ask() string {
	return fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/hostA/%d && printf "%s" >&3 && dd bs=4096 count=1 status=none <&3 | tr -d "\0"'`, s.port, s.request)
}

// talk uses a service on the other host, and wants SMC-R.
func (h host) talk(s service) {
	h.t.Helper()
	line := "smcr run -v -- " + s.ask()
	// A unit may be active before it listens.
	if err := netnstest.Until(testkind.Patience, func() error {
		out, err := h.try(line)
		if !strings.Contains(out, s.answer) || !strings.Contains(out, "smcr: 1 connection over SMC-R, 0 over TCP") {
			return fmt.Errorf("%w: %q", err, out)
		}
		return nil
	}); err != nil {
		h.t.Errorf("%s: %v", line, err)
	}
}

// wantUnit checks what systemd and smcr say about a unit that is enabled.
func (h host) wantUnit(s service) {
	h.t.Helper()
	if after := h.must("systemctl show --value --property=After " + s.unit); !slices.Contains(strings.Fields(after), "smcr.service") {
		h.t.Errorf("%s starts before the stack: %s", s.unit, after)
	}
	var rows []struct {
		Unit    string `json:"unit"`
		Enabled bool   `json:"enabled"`
		Active  string `json:"active"`
		PID     int    `json:"main_pid"`
		Under   bool   `json:"under_smcr_run"`
	}
	out := h.must("smcr service status -o json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		h.t.Fatalf("%v: %s", err, out)
	}
	if r := rows[0]; r.Unit != s.unit+".service" || !r.Enabled || r.Active != "active" || fmt.Sprint(r.PID) != h.mainPID(s.unit) || !r.Under {
		h.t.Errorf("status: %s", out)
	}
	if log := h.must("journalctl --quiet --output=cat --unit=" + s.unit); strings.Contains(log, "smcr: ") {
		h.t.Errorf("the journal of %s has lines of smcr:\n%s", s.unit, log)
	}
}

// wantTakenBack checks that a unit that does not start under smcr run is as before.
func (h host) wantTakenBack() {
	h.t.Helper()
	const unit = "[Service]\nType=exec\nExecStart=/bin/sh -c 'grep -q \"^Seccomp:.0\" /proc/self/status || exit 3; exec sleep 1000'\nExecStartPost=/bin/sleep 1\n"
	if err := os.WriteFile(h.path("etc/systemd/system/picky.service"), []byte(unit), 0o644); err != nil {
		h.t.Fatal(err)
	}
	h.must("systemctl daemon-reload; systemctl start picky")
	pid := h.mainPID("picky")
	out, err := h.try("smcr service enable --restart picky")
	if err == nil || !strings.Contains(out, "picky.service: smcr run cannot work in this unit: it did not start, and is as before") {
		h.t.Errorf("%v: %s", err, out)
	}
	if now := h.mainPID("picky"); now == "0" || now == pid {
		h.t.Errorf("picky does not run as before: main process %s, before %s", now, pid)
	}
	if text := h.must("systemctl cat picky; systemctl stop picky"); strings.Contains(text, "smcr") {
		h.t.Errorf("after the failure:\n%s", text)
	}
}

// writeTasks compares the table of services in docs/tasks.md with what was seen, or writes it.
func writeTasks(t *testing.T, rows []string) {
	const begin, end = "<!-- TestServices writes this table -->\n", "<!-- end of the table -->\n"
	file := filepath.Join(root, "docs/tasks.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of services", file)
	}
	want := before + begin + "\n| Unit | Type | Main process | Main process after a reload | After a stop | After SIGKILL of the main process |\n| --- | --- | --- | --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n\n" + end + after
	if *updateTasks {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("the table of services in docs/tasks.md differs from what was seen: run the test with -update\n%s", strings.Join(rows, "\n"))
	}
}
