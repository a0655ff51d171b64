// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/runs"
	"smcr/internal/testing/testkind"
)

// unitDir has the systemd units.
const unitDir = "../../deploy/systemd"

// A unit is the settings of a unit file, by section and name: each value in its order.
type unit map[string][]string

// readUnit parses a unit file. It fails for what systemd would not understand.
func readUnit(t *testing.T, name string) unit {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(unitDir, name))
	if err != nil {
		t.Fatal(err)
	}
	u, section := unit{}, ""
	for i, line := range strings.Split(string(b), "\n") {
		switch line = strings.TrimSpace(line); {
		case line == "" || line[0] == '#':
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			section = line[1 : len(line)-1]
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || section == "" {
				t.Fatalf("%s:%d: %q", name, i+1, line)
			}
			u[section+"."+key] = append(u[section+"."+key], value)
		}
	}
	return u
}

// one returns a setting that is there once.
func (u unit) one(t *testing.T, key string) string {
	t.Helper()
	if len(u[key]) != 1 {
		t.Fatalf("%s is there %d times", key, len(u[key]))
	}
	return u[key][0]
}

// stackUnits are the units that run the stack.
var stackUnits = []string{"smcr.service", "smcr@.service"}

// TestUnits checks the settings of the units against what the stack needs.
func TestUnits(t *testing.T) {
	var names []string
	for _, p := range append(slices.Clone(privileges), startPrivilege) {
		names = append(names, p.name)
	}
	for _, name := range stackUnits {
		t.Run(name, func(t *testing.T) {
			u := readUnit(t, name)
			for _, key := range []string{"AmbientCapabilities", "CapabilityBoundingSet"} {
				if got := strings.Fields(u.one(t, "Service."+key)); !slices.Equal(got, names) {
					t.Errorf("%s is %q, the stack needs %q", key, got, names)
				}
			}
			for key, want := range map[string]string{
				"Type": "notify", "User": "smcr", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ReadWritePaths": "-" + logDir,
				"MemoryDenyWriteExecute": "yes", "RestrictNamespaces": "net", "PrivateDevices": "yes", "ProtectKernelTunables": "yes", "SystemCallArchitectures": "native", "Restart": "on-failure",
				"NotifyAccess": "exec", "ExecReload": "/usr/local/bin/smcr serve --reload $MAINPID",
			} {
				if got := u.one(t, "Service."+key); got != want {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
			number := func(key string) int {
				n, err := strconv.Atoi(u.one(t, "Service."+key))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			// Go ends a process with more threads. If the system refuses a thread before,
			// Go ends the process too.
			if n := number("TasksMax"); n <= 2*10000 { // of two stacks, after a reload
				t.Errorf("TasksMax is %d", n)
			}
			if n := number("LimitNOFILE"); n < 65536 || n > 1<<20 { // fs.nr_open
				t.Errorf("LimitNOFILE is %d", n)
			}
			if n := number("OOMScoreAdjust"); n >= 0 || n <= -1000 {
				t.Errorf("OOMScoreAdjust is %d", n)
			}
			if n := time.Duration(number("TimeoutStopSec")) * time.Second; n <= 2*endTime {
				t.Errorf("TimeoutStopSec is %v", n)
			}
			if n := number("WatchdogSec"); n < 10 || n > 120 {
				t.Errorf("WatchdogSec is %d", n)
			}
			if m := regexp.MustCompile(`^(\d+)%$`).FindStringSubmatch(u.one(t, "Service.MemoryMax")); m == nil {
				t.Errorf("MemoryMax is %q", u.one(t, "Service.MemoryMax"))
			}
			if pre := u.one(t, "Service.ExecStartPre"); !strings.HasPrefix(pre, "+") || !strings.HasSuffix(pre, "smcr serve --prepare smcr") {
				t.Errorf("ExecStartPre is %q", pre)
			}
		})
	}
	// Both run the same stack.
	a, b := readUnit(t, stackUnits[0]), readUnit(t, stackUnits[1])
	for _, key := range []string{"Unit.Description", "Service.ExecStartPre", "Service.NetworkNamespacePath", "Service.BindReadOnlyPaths"} {
		delete(a, key)
		delete(b, key)
	}
	for key := range b {
		if !slices.Equal(a[key], b[key]) {
			t.Errorf("%s is %q and %q", key, a[key], b[key])
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d and %d settings", len(a), len(b))
	}
	user, err := os.ReadFile(filepath.Join(unitDir, "smcr.sysusers.conf"))
	if err != nil || !strings.Contains(string(user), "\nu smcr ") {
		t.Errorf("%v, %s", err, user)
	}
}

// TestRunsUnit: the process that makes cgroups is of root, and has nothing else; it listens where smcr run asks.
func TestRunsUnit(t *testing.T) {
	u := readUnit(t, "smcr-run.service")
	for key, want := range map[string]string{
		"CapabilityBoundingSet": "", "PrivateNetwork": "yes", "RestrictAddressFamilies": "AF_UNIX", "RestrictNamespaces": "yes", "NoNewPrivileges": "yes",
		"ProtectSystem": "strict", "ProtectKernelTunables": "yes", "PrivateDevices": "yes", "ExecStart": "/usr/local/bin/smcr serve --runs",
	} {
		if got := u.one(t, "Service."+key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"User", "DynamicUser", "AmbientCapabilities", "ProtectControlGroups"} {
		if _, there := u["Service."+key]; there {
			t.Errorf("%s is there", key)
		}
	}
	if got := readUnit(t, "smcr-run.socket").one(t, "Socket.ListenStream"); got != runs.Socket {
		t.Errorf("it listens at %s, want %s", got, runs.Socket)
	}
	for _, name := range stackUnits {
		if got := readUnit(t, name).one(t, "Unit.Wants"); !slices.Contains(strings.Fields(got), "smcr-run.socket") {
			t.Errorf("%s wants %s", name, got)
		}
	}
}

// needAnalyze skips a test without systemd's program for units.
func needAnalyze(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// analyze runs systemd-analyze.
func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
	return string(out), err
}

// TestUnitCalls checks that the units allow the system calls of the stack, and those that it
// makes before it limits itself.
func TestUnitCalls(t *testing.T) {
	testkind.System(t)
	needAnalyze(t)
	for _, name := range stackUnits {
		allowed := map[string]bool{}
		for i, line := range readUnit(t, name)["Service.SystemCallFilter"] {
			list, remove := strings.CutPrefix(line, "~")
			if i == 0 && remove {
				t.Fatal("the first list says what is forbidden")
			}
			for _, entry := range strings.Fields(list) {
				for _, call := range expand(t, entry) {
					allowed[call] = !remove
				}
			}
		}
		var calls []string
		for _, c := range systemCalls() {
			calls = append(calls, c.Name)
		}
		for _, c := range append(calls, "seccomp", "bpf", "prctl", "capset", "setrlimit", "prlimit64", "arch_prctl", "set_tid_address", "unshare", "fsopen", "fsconfig", "fsmount") {
			// systemd allows these in any case (systemd.exec(5)).
			if implied := []string{"exit", "exit_group", "getrlimit", "rt_sigreturn", "clock_gettime", "gettimeofday", "clock_nanosleep", "nanosleep"}; !allowed[c] && !slices.Contains(implied, c) {
				t.Errorf("%s does not allow %s", name, c)
			}
		}
		for _, c := range []string{"mount", "move_mount", "open_tree", "setns", "ptrace", "init_module", "setuid", "chown", "reboot", "kexec_load", "open_by_handle_at", "perf_event_open", "keyctl"} {
			if allowed[c] {
				t.Errorf("%s allows %s", name, c)
			}
		}
	}
}

// expand returns the system calls of a set of systemd, or the call itself.
func expand(t *testing.T, entry string) (calls []string) {
	t.Helper()
	if entry[0] != '@' {
		return []string{entry}
	}
	out, err := analyze(t, "syscall-filter", entry)
	if err != nil {
		t.Fatalf("%s: %v\n%s", entry, err, out)
	}
	for line := range strings.Lines(out) {
		word := strings.TrimSpace(line)
		if word == "" || word == entry || word[0] == '#' {
			continue
		}
		calls = append(calls, expand(t, word)...)
	}
	return calls
}

// TestUnitVerify has systemd check the units, and how far they expose the system.
func TestUnitVerify(t *testing.T) {
	testkind.System(t)
	needAnalyze(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The program and its manual are not installed here.
	bare := func(text string) string {
		text = strings.ReplaceAll(text, "/usr/local/bin/smcr", exe)
		return regexp.MustCompile(`(?m)^Documentation=.*\n`).ReplaceAllString(text, "")
	}
	for _, name := range append(slices.Clone(stackUnits), "smcr-run.service", "smcr-apply.service", "smcr-exporter.service") {
		b, err := os.ReadFile(filepath.Join(unitDir, name))
		if err != nil {
			t.Fatal(err)
		}
		text := bare(string(b))
		dir := t.TempDir()
		for _, other := range []string{"smcr-run.socket", "smcr-run.service"} { // of which the others speak
			b, err := os.ReadFile(filepath.Join(unitDir, other))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, other), []byte(bare(string(b))), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, strings.Replace(name, "@", "@test", 1))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := analyze(t, "verify", "--man=no", path); err != nil || out != "" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		// CAP_SYS_ADMIN counts 0.3, although it is given up.
		if out, err := analyze(t, "security", "--offline=true", "--threshold=27", path); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestPrivileges checks that docs/security.md says of each capability what is lost without
// it, and names no other.
func TestPrivileges(t *testing.T) {
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(CAP_\\w+)` \\| (.*) \\|$").FindAllStringSubmatch(string(b), -1) {
		if len(m[2]) < 20 {
			t.Errorf("%s: %q", m[1], m[2])
		}
		said = append(said, m[1])
	}
	var are []string
	for _, p := range privileges {
		are = append(are, p.name)
	}
	if !slices.Equal(said, are) {
		t.Errorf("the document has %q, the stack keeps %q", said, are)
	}
}
