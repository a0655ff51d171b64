// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// special makes a copy of a program in a directory that others can reach, and changes it.
func special(t *testing.T, dir, program, name string, change func(path string) error) string {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := change(path); err != nil {
		t.Skipf("%s: %v", name, err)
	}
	return path
}

// TestSpecialPrograms: programs that get more rights than their user when they begin (set-user-ID,
// set-group-ID, file capabilities), and programs whose memory nobody may read. Under smcr run, whoever
// starts it, they have the rights that they have without it, and use SMC-R.
func TestSpecialPrograms(t *testing.T) {
	l := newLab(t, "setpriv", "setcap", "cp")
	stack := l.serve(l.A)
	server := l.server()
	addr, plainAddr := l.B.Addr()+":5001", l.B.Addr()+":5002"
	plain := l.B.Go(t, bin("probe"), "server", plainAddr)
	if err := plain.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "smcr-e2e-") // file capabilities need a file system that has them
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mode := func(m os.FileMode) func(string) error { return func(p string) error { return os.Chmod(p, m) } }
	caps := func(p string) error {
		return exec.Command("setcap", "cap_net_admin,cap_net_raw,cap_setuid,cap_sys_ptrace+ep", p).Run()
	}
	who := func(path string) []string {
		return []string{"sh", "-c", `"$0" "$1" "$2"; exec "$3" -E '^(Uid|Gid|CapEff|NoNewPrivs)' /proc/self/status`, path, "rights"}
	}
	grep, err := exec.LookPath("grep")
	if err != nil {
		t.Fatal(err)
	}
	lines := func(argv []string) (all []string, log string) {
		t.Helper()
		p := l.A.Go(t, argv[0], argv[1:]...)
		wantEnd(t, p)
		for line := range strings.Lines(p.Log()) {
			if !strings.HasPrefix(line, "smcr: ") {
				all = append(all, strings.TrimSpace(line))
			}
		}
		return all, p.Log()
	}
	run := func(argv ...string) []string {
		return append([]string{bin("smcr"), "run", "--mode", "user", "-v", "--"}, argv...)
	}
	for _, tt := range []struct {
		name   string
		change func(string) error
	}{
		{"plain", mode(0o755)},
		{"set-user-ID", mode(0o755 | os.ModeSetuid)},
		{"set-group-ID", mode(0o755 | os.ModeSetgid)},
		{"capabilities", caps},
		{"not readable", mode(0o711)},
		{"set-user-ID and not readable", mode(0o711 | os.ModeSetuid)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			probe := special(t, dir, bin("probe"), strings.ReplaceAll(tt.name, " ", "-"), tt.change)
			status := special(t, dir, grep, strings.ReplaceAll(tt.name, " ", "-")+"-status", tt.change)
			want, _ := lines(as(hostileUser, append(who(probe), plainAddr, status)...))
			for _, start := range []struct {
				name string
				argv []string
			}{
				{"by the user", as(hostileUser, run(append(who(probe), addr, status)...)...)},
				{"by root", run(as(hostileUser, append(who(probe), addr, status)...)...)},
				{"one smcr run in another", run(as(hostileUser, run(append(who(probe), addr, status)...)...)...)},
			} {
				got, log := lines(start.argv)
				if len(want) < 14 || !slices.Equal(got, want) {
					t.Errorf("%s:\n\t%s\nwithout smcr\n\t%s", start.name, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
				}
				wantSummary(t, log, 1)
			}
		})
	}
	// The same for a program that forbids it at run time, and is traced by another one.
	for name, code := range map[string]string{
		"not dumpable": "ctypes.CDLL(None).prctl(4, 0)\n",
		"traced by its child": `
r, w = os.pipe()
tracer = os.fork()
if tracer == 0: # PTRACE_SEIZE of the program, which goes on
    ctypes.CDLL(None).ptrace(0x4206, os.getppid(), 0, 0); os.write(w, b'x'); signal.pause()
ctypes.CDLL(None).prctl(0x59616d61, tracer)
os.read(r, 1)
`,
	} {
		for start, argv := range map[string][]string{
			"by the user": as(hostileUser, run("/usr/bin/python3", "-c", importing+code+exchanging, addr)...),
			"by root":     run(as(hostileUser, "/usr/bin/python3", "-c", importing+code+exchanging, addr)...),
		} {
			p := l.A.Go(t, argv[0], argv[1:]...)
			wantEnd(t, p)
			if log := p.Log(); !strings.Contains(log, "exchanged") || !overSMC(log) {
				t.Errorf("%s, %s:\n%s", name, start, log)
			}
		}
	}
	terminate(t, plain)
	terminate(t, server)
	terminate(t, stack)
}

// A program in Python that exchanges a message with the probe.
const (
	importing  = "import ctypes, os, signal, socket, sys\ntracer = 0\n"
	exchanging = `
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_connection((host, int(port)))
s.sendall(b'x' * 1024)
got = b''
while len(got) < 1024: got += s.recv(1024)
s.close()
print('exchanged', flush=True)
if tracer: os.kill(tracer, 9)
`
)
