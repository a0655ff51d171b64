// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// probeEnv makes the test binary one of the probes.
const probeEnv = "SMCR_KERNELSMC_PROBE"

// quietRuntime keeps Go's scheduler from sending signals, which interrupt the system calls of a probe: probes stand for programs in
// any language.
const quietRuntime = "GODEBUG=asyncpreemptoff=1"

func TestMain(m *testing.M) {
	MaybeChild()
	// The race detector waits a second at the end of each process.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	p, name := TheProcess(), os.Getenv(probeEnv)
	switch {
	case p != nil && p.Supervises:
		v, err := Supervise(p.Sock, Config{}, slog.New(slog.DiscardHandler))
		if err == nil {
			err = v.Serve()
		}
		exit(err)
	case p != nil:
		exit(p.Become(os.Args[1], os.Args[1:]))
	case name == "become":
		exit(Become(os.Args[1], os.Args[1:]))
	case name != "":
		exit(probes[name](os.Args[1:]))
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// supervised runs a program, which has to succeed, and returns what became of its sockets.
func supervised(t *testing.T, c Config, probe string, argv ...string) Stats {
	t.Helper()
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socks[0])
	given := os.NewFile(uintptr(socks[1]), "socket")
	var out bytes.Buffer
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{programName, "3", "smcr"}, argv...), Env: append(os.Environ(), probeEnv+"="+probe, quietRuntime),
		Stdout: &out, Stderr: &out, ExtraFiles: []*os.File{given},
	}
	err = cmd.Start()
	_ = given.Close()
	if err != nil {
		t.Fatal(err)
	}
	v, err := Supervise(socks[0], c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if v == nil {
		t.Fatal(err, cmd.Wait(), &out)
	}
	served := make(chan error, 1)
	go func() { served <- v.Serve() }()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%q: %v\n%s", argv, err, &out)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	return v.Stats()
}

// probe is supervised for a probe.
func probe(t *testing.T, c Config, name string, args ...string) Stats {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return supervised(t, c, name, append([]string{exe}, args...)...)
}

// needSMC skips tests on kernels without SMC. The tests of internal/run run them in a guest, whose kernel has it.
func needSMC(t *testing.T, c Config) {
	t.Helper()
	if err := c.Probe(); err != nil {
		t.Skipf("needs a kernel with SMC: go test -run Guest ./internal/run: %v", err)
	}
}

// TestBecome: the process that was started is the program, which has no child, and what it has started goes on after it.
func TestBecome(t *testing.T) {
	testkind.System(t)
	const script = `echo $$ $PPID; grep -h . /proc/$$/task/*/children; grep NoNewPrivs /proc/$$/status; exit 7`
	cmd := exec.Command("/proc/self/exe", "/bin/sh", "-c", script)
	cmd.Env = append(os.Environ(), probeEnv+"=become")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("status %d: %v", got, err)
	}
	words := strings.Fields(out.String())
	// The child is the grep that prints it.
	if len(words) != 5 || words[0] != strconv.Itoa(cmd.ProcessState.Pid()) || words[1] != strconv.Itoa(os.Getpid()) || words[4] != "1" {
		t.Errorf("%q, want process %d, child of %d", &out, cmd.ProcessState.Pid(), os.Getpid())
	}
}

// TestSupervisorEnds: the supervisor ends with the last process of the program.
func TestSupervisorEnds(t *testing.T) {
	testkind.System(t)
	cmd := exec.Command("/proc/self/exe", "/bin/sh", "-c", "sleep 600 >/dev/null 2>&1 </dev/null & echo $!")
	cmd.Env = append(os.Environ(), probeEnv+"=become")
	b, err := cmd.Output() // which waits for the end of standard error, too
	if err != nil {
		t.Fatal(err)
	}
	sleep, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	program := strconv.Itoa(cmd.ProcessState.Pid())
	supervisors := func() (n int) {
		all, _ := os.ReadDir("/proc")
		for _, e := range all {
			b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			if w := strings.Split(string(b), "\x00"); w[0] == supervisorName && w[2] == program {
				n++
			}
		}
		return n
	}
	if n := supervisors(); n != 1 {
		t.Errorf("%d supervisors beside a process that goes on", n)
	}
	_ = unix.Kill(sleep, unix.SIGKILL)
	testkind.Eventually(t, "the supervisor ends with the last process", func() (any, bool) {
		n := supervisors()
		return n, n == 0
	})
}

// TestAbsent: a program keeps its TCP sockets where the kernel makes no SMC ones.
func TestAbsent(t *testing.T) {
	testkind.System(t)
	if err := (Config{}).Probe(); err == nil {
		t.Skip("needs a kernel without SMC")
	} else if !errors.Is(err, ErrNoSMC) {
		t.Fatal(err)
	}
	if s := probe(t, Config{}, "echo"); s.SMC != 0 || s.TCP[ReasonNoSocket] != 2 {
		t.Errorf("%+v, want 2 TCP sockets", s)
	}
}

// TestLandlock: sockets are TCP from the first ruleset on that may forbid connections.
func TestLandlock(t *testing.T) {
	testkind.System(t)
	s := probe(t, Config{}, "landlock")
	if s.TCP[ReasonLandlock] != 1 || s.SMC+s.TCP[ReasonNoSocket] != 2 {
		t.Errorf("%+v, want 1 TCP socket because of Landlock", s)
	}
}

// TestWithin: a program within another one has the sockets of that.
func TestWithin(t *testing.T) {
	testkind.System(t)
	s := supervised(t, Config{}, "become", "/proc/self/exe", "/bin/sh", "-c", "exit 0")
	if s.SMC != 0 || len(s.TCP) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOwnerOf(t *testing.T) {
	dir := t.TempDir()
	for status, want := range map[string][2]int{
		"Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9\n": {4, 8},
		"": {}, "Name:\tx\nUid:\t1\t2\t3\t4\n": {}, "Name:\tx\nUid:\t1\t2\n": {}, "Name:\tx\nUid:\t1\t2\t3\tx\nGid:\t5\t6\t7\t8\n": {},
	} {
		if err := os.WriteFile(dir+"/status", []byte(status), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ownerOf(dir); (err == nil) != (want[0] != 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", status, got, err)
		}
	}
}

func TestSockets(t *testing.T) {
	testkind.System(t)
	for _, c := range []Config{{}, {Inet: true}} {
		t.Run(fmt.Sprintf("inet=%v", c.Inet), func(t *testing.T) {
			needSMC(t, c)
			if s := probe(t, c, "sockets", strconv.FormatBool(c.Inet)); s.SMC != tcpSockets || len(s.TCP) != 0 {
				t.Errorf("%+v, want %d SMC sockets", s, tcpSockets)
			}
			if s := probe(t, c, "echo"); s.SMC != 2 {
				t.Errorf("%+v, want 2 SMC sockets", s)
			}
		})
	}
}

func TestLimit(t *testing.T) {
	testkind.System(t)
	needSMC(t, Config{})
	probe(t, Config{}, "limit")
}

func TestStorm(t *testing.T) {
	testkind.System(t)
	needSMC(t, Config{})
	if s := probe(t, Config{}, "storm"); s.SMC != stormSockets {
		t.Errorf("%d sockets, want %d", s.SMC, stormSockets)
	}
}

// TestOwner: a socket is in the network namespace of its program and belongs to the program's user, not to that of the supervisor.
func TestOwner(t *testing.T) {
	testkind.System(t)
	needSMC(t, Config{})
	if os.Geteuid() != 0 {
		t.Skip("needs root: sudo go test -run Guest ./internal/run")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{exe, "0"},
		{"setpriv", "--reuid=65534", "--regid=65533", "--clear-groups", exe, "65534"},
		{"unshare", "--net", exe, "0"},
		{"unshare", "--net", "setpriv", "--reuid=65534", "--regid=65533", "--clear-groups", exe, "65534"},
	} {
		path, err := exec.LookPath(argv[0])
		if err != nil {
			t.Fatal(err)
		}
		if s := supervised(t, Config{}, "owner", append([]string{path}, argv[1:]...)...); s.SMC != 1 {
			t.Errorf("%q: %+v", argv, s)
		}
	}
}

func TestBuffers(t *testing.T) {
	testkind.System(t)
	c := Config{RcvBuf: 3 << 20, SndBuf: 5 << 20}
	needSMC(t, c)
	if os.Geteuid() != 0 {
		t.Skip("needs root: sudo go test -run Guest ./internal/run")
	}
	for _, c.Inet = range []bool{false, true} {
		probe(t, c, "buffers", strconv.Itoa(c.RcvBuf), strconv.Itoa(c.SndBuf))
	}
}
