// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
)

// asExporter is the environment variable with which TestMain is smcr exporter.
const asExporter = "SMCR_TEST_EXPORTER"

func TestMain(m *testing.M) {
	if os.Getenv(asExporter) == "" {
		os.Exit(m.Run())
	}
	cmd := NewCmd(cmdutil.NewFactory("1.2.3"))
	cmd.SetArgs(os.Args[1:])
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(cmdutil.ExitCode(err))
	}
	os.Exit(0)
}

// A log collects what a process writes.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestProcess runs the exporter as a process: it has no rights, answers scrapes, and ends in
// order on SIGTERM.
func TestProcess(t *testing.T) {
	testkind.System(t)
	var out log
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--listen", ":0")
	cmd.Env = append(os.Environ(), asExporter+"=1", cmdutil.BackendEnv+"=auto")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var url string
	testkind.Eventually(t, "the exporter starts", func() (any, bool) {
		_, rest, _ := strings.Cut(out.String(), "url=")
		var ok bool
		url, _, ok = strings.Cut(rest, "\n")
		return out.String(), ok
	})
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("a missing host means %s", url)
	}
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), "\nsmcr_stacks ") {
		t.Errorf("%s, %v\n%s", r.Status, err, body)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil || !withCgo && !strings.Contains(string(status), "CapPrm:\t0000000000000000\n") {
		t.Errorf("the exporter has rights: %v\n%s", err, status)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, out.String())
	}
}

// TestUsage: what is wrong with the command line is said before anything is opened.
func TestUsage(t *testing.T) {
	testkind.System(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		backend string
		args    []string
		want    error
	}{
		{"auto", []string{"--listen", "9791"}, cmdutil.ErrUsage},
		{"auto", []string{"--listen", "127.0.0.1:http"}, cmdutil.ErrUsage},
		{"auto", []string{"name"}, cmdutil.ErrUsage},
		{"nonsense", nil, cmdutil.ErrUsage},
		{"auto", []string{"--listen", taken.Addr().String()}, syscall.EADDRINUSE},
	} {
		streams, _, _, _ := cmdutil.MemoryStreams()
		cmd := NewCmd(&cmdutil.Factory{IO: streams, Backend: tt.backend})
		cmd.SetArgs(tt.args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s %q: %v", tt.backend, tt.args, err)
		}
	}
}

// TestSource checks which stacks a scrape asks for each value of --backend.
func TestSource(t *testing.T) {
	one := func(name string) nl.Multi {
		return nl.Multi{{Name: name, Control: nltest.NewFake(nltest.State{})}}
	}
	none := func(context.Context, string) (nl.Multi, error) { return nil, nl.ErrNoBackend }
	broken := errors.New("broken")
	ending := func(context.Context) (nl.Multi, error) { return one("ending-1"), nil }
	for _, tt := range []struct {
		name, backend string
		dial          func(context.Context, string) (nl.Multi, error)
		ending        func(context.Context) (nl.Multi, error)
		want          string
	}{
		{"both", "auto", func(_ context.Context, b string) (nl.Multi, error) { return one(b), nil }, ending, "kernel user ending-1"},
		{"none", "auto", none, nil, ""},
		{"none of those named", "user", none, nil, "user!"},
		{"kernel", "kernel", func(_ context.Context, b string) (nl.Multi, error) { return one(b), nil }, ending, "kernel"},
		{"one cannot be asked", "auto", func(_ context.Context, b string) (nl.Multi, error) {
			if b == "user" {
				return nil, broken
			}
			return one(b), nil
		}, nil, "kernel user!"},
		{"ending ones cannot be asked", "auto", none, func(context.Context) (nl.Multi, error) { return nil, broken }, "ending!"},
		{"a socket", "unix:/s", func(_ context.Context, b string) (nl.Multi, error) { return one(b), nil }, ending, "unix:/s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, s := range source(&cmdutil.Factory{Backend: tt.backend, Dial: tt.dial, Ending: tt.ending})(t.Context()) {
				name := s.Name
				if s.Err != nil {
					name += "!"
				} else if s.Control == nil {
					t.Errorf("%s has neither a Control nor an error", name)
				}
				got = append(got, name)
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("%q, want %q", s, tt.want)
			}
		})
	}
}
