// SPDX-License-Identifier: Apache-2.0

package joinedtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

const (
	// commandLimit bounds each command in the guest.
	commandLimit = 5 * time.Minute

	// guestLimit is more than the test takes on a busy machine.
	guestLimit = 20 * time.Minute
)

// bed is a guest with the programs of the tests.
type bed struct {
	*guest.Guest
	smcr string // its name in the guest
}

func newBed(t *testing.T) *bed {
	t.Helper()
	g := guest.New(t, guest.Config{Name: "joined", Limit: guestLimit})
	t.Logf("Linux %s, boot took %v", g.Kernel(), g.BootTime())
	b := &bed{Guest: g}
	b.smcr = b.program(t, "smcr/cmd/smcr")
	b.run(t, "ip", "link", "set", "lo", "up")
	return b
}

// program compiles a program, and returns its name in the guest.
func (b *bed) program(t *testing.T, pkg string) string {
	t.Helper()
	file, err := guest.Program(t.Context(), pkg)
	if err != nil {
		t.Fatal(err)
	}
	return b.push(t, file)
}

// tests compiles the tests of a package, and returns the name of the program in the guest.
func (b *bed) tests(t *testing.T, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg)+".test")
	if err := guest.BuildTest(t.Context(), pkg, file); err != nil {
		t.Fatal(err)
	}
	return b.push(t, file)
}

func (b *bed) push(t *testing.T, file string) string {
	t.Helper()
	name, err := b.Push(file)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// run runs a command that must succeed, and returns what it wrote.
func (b *bed) run(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	r, err := b.Run(ctx, argv...)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	return r.Stdout + r.Stderr
}

// start starts a command and waits until it has written ready. stop ends it with SIGTERM, and
// returns what it wrote.
func (b *bed) start(t *testing.T, ready string, argv ...string) (stop func() string) {
	t.Helper()
	c := b.Command(argv...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	out := ""
	stop = func() string {
		if out != "" {
			return out
		}
		if err := c.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		r, _ := c.Wait(ctx) // for some programs, the status is that of the signal
		out = r.Stdout + r.Stderr + "\n"
		return out
	}
	t.Cleanup(func() { stop() })
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	if err := c.WaitStdout(ctx, ready); err != nil {
		t.Fatal(err)
	}
	return stop
}

// TestJoined boots one guest for all parts.
func TestJoined(t *testing.T) {
	b := newBed(t)
	t.Run("Closes", func(t *testing.T) {
		b.passed(t, "smcr/userstack/internal/lastclose", ".", "TestLastCloseProcess", "TestLastCloseMessage", "TestLastCloseInCall", "TestLastCloseUnread", "TestLastCloseAll")
	})
	t.Run("Service", func(t *testing.T) {
		b.passed(t, "smcr/userstack/service", "^(TestLocal|TestKernelReportsCloses)", "TestKernelReportsCloses", "TestLocal", "TestLocalEndings", "TestLocalReset", "TestLocalLateAccept", "TestLocalOthersEnd")
	})
	t.Run("Programs", func(t *testing.T) { testPrograms(t, b) })
	t.Run("Field", func(t *testing.T) { testField(t, b) })
}

// passed runs the tests of a package that match a pattern, in their short form. They must
// pass, those of these names among them, and none may be skipped.
func (b *bed) passed(t *testing.T, pkg, pattern string, want ...string) {
	t.Helper()
	out := b.run(t, "env", "SMCR_GUEST=1", b.tests(t, pkg), "-test.v", "-test.short", "-test.run", pattern)
	if strings.Contains(out, "--- SKIP") {
		t.Errorf("a test was skipped:\n%s", out)
	}
	for _, name := range want {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}
}

// server and client are programs with connections of which each carries some bytes both ways.
// The argument of the client is their number.
const (
	server = `
import socket
l = socket.create_server(("127.0.0.1", 7100), backlog=64)
print("listening", flush=True)
while True:
    c = l.accept()[0]
    while data := c.recv(100):
        c.sendall(data)
    c.close()
`
	client = `
import socket, sys
for i in range(int(sys.argv[1])):
    # With a timeout, connect() does not wait in the kernel.
    c = socket.create_connection(("127.0.0.1", 7100), timeout=120 if i % 2 else None)
    c.sendall(b"%d" % i)
    if c.recv(100) != b"%d" % i:
        sys.exit("connection %d: not the answer" % i)
    c.shutdown(socket.SHUT_WR)
    if c.recv(100) != b"":
        sys.exit("connection %d: no end" % i)
    c.close()
`
	holder = `
import signal, socket
c = socket.create_connection(("127.0.0.1", 7100))
c.sendall(b"x")
c.recv(1)
print("open", flush=True)
signal.pause()
`
)

// python runs a program under smcr run --local, as this user.
func (b *bed) python(user int, program string, args ...string) []string {
	argv := []string{"setpriv", "--reuid", fmt.Sprint(user), "--clear-groups", b.smcr, "run", "--mode", "user", "-v", "--local", "--no-adapt", "--", "/usr/bin/python3", "-c", program}
	return append(argv, args...)
}

var summaryRE = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP(?:, (\d+) local(?: \((\d+) joined\))?)?`)

// wantJoined checks the summary of smcr run -v.
func wantJoined(t *testing.T, out string, n int) {
	t.Helper()
	m := summaryRE.FindStringSubmatch(out)
	if m == nil || m[1] != "0" || m[2] != "0" || m[3] != fmt.Sprint(n) || m[4] != m[3] {
		t.Errorf("want %d joined connections and no others:\n%s", n, out)
	}
}

// wantMostJoined is wantJoined for a machine that has no time: a twentieth may be TCP.
func wantMostJoined(t *testing.T, out string, n int) {
	t.Helper()
	m := summaryRE.FindStringSubmatch(out)
	if m == nil {
		t.Errorf("no summary in\n%s", out)
		return
	}
	tcp, _ := strconv.Atoi(m[2])
	joined, _ := strconv.Atoi(m[4])
	t.Logf("%d joined, %d over TCP", joined, tcp)
	if m[1] != "0" || m[3] != m[4] || joined+tcp != n || tcp > n/20 {
		t.Errorf("want %d joined connections and few others:\n%s", n, out)
	}
}

// testPrograms: the connections of two programs are joined, nearly all of them also while the guest
// has no time for them, and none fails; those of two users are joined only if the kernel can keep users from
// passing descriptors to each other.
func testPrograms(t *testing.T, b *bed) {
	stop := b.start(t, "", b.smcr, "serve")
	defer stop()
	for deadline := time.Now().Add(commandLimit); ; time.Sleep(time.Second) {
		if r, err := b.Run(t.Context(), b.smcr, "--backend", "user", "info"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the stack does not answer: %v\n%s", err, r.Stdout)
		}
	}
	t.Run("Listed", func(t *testing.T) {
		server := b.start(t, "listening", b.python(0, server)...)
		client := b.start(t, "open", b.python(0, holder)...)
		if out := b.run(t, b.smcr, "--backend", "user", "connection", "list"); strings.Count(out, "LOCAL") != 2 {
			t.Errorf("want both sides of a local connection:\n%s", out)
		}
		wantJoined(t, client(), 1)
		wantJoined(t, server(), 1)
	})
	t.Run("Busy", func(t *testing.T) {
		const loops = 8
		conns := 40 // each takes a second of an emulated processor that does so much else
		if s := os.Getenv("SMCR_JOINED_BUSY"); s != "" {
			var err error
			if conns, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		server := b.start(t, "listening", b.python(0, server)...)
		b.start(t, "loops", "sh", "-c", fmt.Sprintf("trap 'kill $(jobs -p); exit' TERM; for i in $(seq %d); do while :; do :; done & done; echo loops; wait", loops))
		// A launcher or the stack that gets no time for seconds leaves connections to TCP.
		ctx, cancel := context.WithTimeout(t.Context(), commandLimit+time.Duration(conns)*3*time.Second)
		defer cancel()
		r, err := b.Run(ctx, b.python(0, client, fmt.Sprint(conns))...)
		served := server()
		if err != nil {
			t.Fatalf("%v\n%s\nthe server:\n%s", err, r.Stdout, served)
		}
		wantMostJoined(t, r.Stdout+r.Stderr, conns)
		wantMostJoined(t, served, conns)
	})
	t.Run("Users", func(t *testing.T) {
		server := b.start(t, "listening", b.python(0, server)...)
		out := b.run(t, b.python(65534, client, "3")...)
		if strings.Contains(out, "SO_PASSRIGHTS") {
			if m := summaryRE.FindStringSubmatch(out); m == nil || m[2] != "3" || m[3] != "" {
				t.Errorf("want three connections over TCP:\n%s", out)
			}
		} else {
			wantJoined(t, out, 3)
		}
		server()
	})
}

// fieldCases are about what a program sees of its peer. The others are also tried where connections
// stay TCP (TestField of package e2e), or there is no connection to join.
const fieldCases = "^(closeevents|firstwrite|optionsafter|sendto|sourceport|linger)/"

// testField: what programs see of joined connections is what they see of TCP, in the situations
// of package field.
func testField(t *testing.T, b *bed) {
	out := b.run(t, b.program(t, "smcr/internal/testing/field/smcrfield"), "-smcr", b.smcr, "-quick", "-modes", "joined", "-cases", fieldCases)
	if !strings.Contains(out, "OK joined") {
		t.Errorf("no case was about joined connections:\n%s", out)
	}
	t.Log(out)
}
