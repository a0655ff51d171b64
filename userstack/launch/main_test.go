// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// probeEnv makes the test binary one of the probes of probe_test.go.
const probeEnv = "SMCR_LAUNCH_PROBE"

// quietRuntime keeps Go's scheduler from sending signals, which interrupt the system
// calls of a probe: probes stand for programs in any language.
const quietRuntime = "GODEBUG=asyncpreemptoff=1"

func TestMain(m *testing.M) {
	MaybeChild()
	// The race detector waits a second at the end of each process.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	if addr := os.Getenv(fakeEnv); addr != "" {
		os.Exit(serveFake(addr))
	}
	if name := os.Getenv(probeEnv); name != "" {
		os.Exit(runProbe(name, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// result is what a launched program did.
// patience is how long a test waits for what has to come: a machine that is busy
// may take many seconds for the start of a program.
const patience = time.Minute

type result struct {
	status int
	out    string
	stats  Stats
}

// launched runs argv over stack and returns what it did. stdin, if not empty,
// is its input.
func launched(t testing.TB, stack *fakeStack, stdin string, env []string, argv ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	stack.t = t
	return launchedWith(t, ctx, Config{Argv: argv, Env: append(os.Environ(), env...), Broker: stack.client(), decide: stack.decide}, stdin)
}

func launchedWith(t testing.TB, ctx context.Context, cfg Config, stdin string) result {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, inw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer inw.Close()
		_, _ = io.WriteString(inw, stdin)
	}()
	var out bytes.Buffer
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(&out, r)
	}()
	cfg.Stdin, cfg.Stdout, cfg.Stderr = in, w, w
	if testing.Verbose() && os.Getenv("LAUNCH_DEBUG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	} else if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(&logWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	status, stats, err := Run(ctx, apart(cfg))
	_ = w.Close()
	<-copied
	_ = r.Close()
	_ = in.Close()
	if err != nil {
		t.Fatalf("Run(%q): %v\n%s", cfg.Argv, err, out.String())
	}
	return result{status, out.String(), stats}
}

// apart makes the addresses of this machine count as those of other hosts, unless the test
// is about this machine: its peers are on the loopback device.
func apart(cfg Config) Config {
	if cfg.apart == nil {
		cfg.apart = new(true)
	}
	return cfg
}

type logWriter struct{ t testing.TB }

func (w *logWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// probe runs a probe over stack and fails the test unless it succeeds.
func probe(t *testing.T, stack *fakeStack, name string, args ...string) result {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	res := launched(t, stack, "", []string{probeEnv + "=" + name}, append([]string{exe}, args...)...)
	if res.status != 0 {
		t.Fatalf("probe %s: status %d\n%s", name, res.status, res.out)
	}
	if s := strings.TrimSpace(res.out); s != "" {
		t.Logf("probe %s:\n%s", name, s)
	}
	return res
}

// echoServer is outside of any launcher. It greets, then echoes.
func echoServer(t testing.TB, network, addr, greeting string) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, greeting)
				// Not by splice, whose pipes stay open until they are collected.
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			}()
		}
	}()
	return l.Addr().String()
}

// closedPort returns an address where nobody listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestExitStatus(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct {
		argv []string
		want int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 7"}, 7},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
	} {
		t.Run(fmt.Sprint(tt.argv), func(t *testing.T) {
			if got := launched(t, &fakeStack{}, "", nil, tt.argv...).status; got != tt.want {
				t.Errorf("status %d, want %d", got, tt.want)
			}
		})
	}
}

// running is a program that the test speaks with while it runs.
type running struct {
	r    *os.File
	pidc chan int
	buf  []byte
	res  chan result
}

// startProbe starts a probe; its output is read by line and wait.
func startProbe(t *testing.T, stack *fakeStack, name string, args ...string) *running {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stack.t = t
	return start(t, Config{
		Argv: append([]string{exe}, args...), Env: append(os.Environ(), probeEnv+"="+name, quietRuntime), Broker: stack.client(),
	})
}

func start(t *testing.T, cfg Config) *running {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	p := &running{r: r, res: make(chan result, 1), pidc: make(chan int, 1)}
	cfg.Started = func(pid int) { p.pidc <- pid }
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	cfg.Stdin, cfg.Stdout, cfg.Stderr = null, w, w
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(&logWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		status, stats, err := Run(ctx, apart(cfg))
		if err != nil {
			t.Errorf("Run(%q): %v", cfg.Argv, err)
		}
		_ = w.Close()
		_ = null.Close()
		p.res <- result{status: status, stats: stats}
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		_ = r.Close()
	})
	return p
}

// line returns the next line of output.
func (p *running) line(t *testing.T) string {
	t.Helper()
	_ = p.r.SetReadDeadline(time.Now().Add(patience))
	for {
		if line, rest, ok := strings.Cut(string(p.buf), "\n"); ok {
			p.buf = []byte(rest)
			return line
		}
		b := make([]byte, 4096)
		n, err := p.r.Read(b)
		if err != nil {
			t.Fatalf("no line of output, only %q: %v", p.buf, err)
		}
		p.buf = append(p.buf, b[:n]...)
	}
}

// wait returns what the program did, and the output that is left.
func (p *running) wait(t *testing.T) result {
	t.Helper()
	_ = p.r.SetReadDeadline(time.Now().Add(2 * patience))
	rest, err := io.ReadAll(p.r)
	if err != nil {
		t.Fatalf("the program does not end: %v\n%s", err, rest)
	}
	res := <-p.res
	res.out = string(p.buf) + string(rest)
	return res
}

// pid returns the program's process id; it can be asked once.
func (p *running) pid(t *testing.T) int {
	t.Helper()
	select {
	case pid := <-p.pidc:
		return pid
	case <-time.After(patience):
		t.Fatal("the program did not start")
		return 0
	}
}

func sha(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
