// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
)

// maxStart is how much processor time a listing may take, from the start of the process to
// its end. It waits for nothing else, so it takes no longer than this on an idle machine.
const maxStart = 15 * time.Millisecond

// maxInit is how much memory the packages may allocate before main, in bytes. What they
// compile or build there, such as regular expressions, delays each command.
const maxInit = 1 << 20

// TestTimingStartup runs a listing as a process of its own. Other work of the machine takes no
// processor time of the listing, but empties caches: the best of many runs counts.
func TestTimingStartup(t *testing.T) {
	testkind.Timing(t)
	if raceDetector {
		t.Skip("the race detector makes the start slower")
	}
	run := startListings(t)
	best := time.Hour
	for range 200 {
		_, took := run()
		if best = min(best, took); best < maxStart {
			break
		}
	}
	if best > maxStart {
		t.Errorf("the best of 200 listings took %v of processor time, want at most %v", best, maxStart)
	}
	t.Log(best)
}

// TestStartup: packages do little before main.
func TestStartup(t *testing.T) {
	testkind.System(t)
	if raceDetector {
		t.Skip("the race detector allocates memory of its own")
	}
	trace, _ := startListings(t)("GODEBUG=inittrace=1")
	total := 0
	for line := range strings.Lines(trace) {
		var pkg string
		var at, clock float64
		var n int
		if _, err := fmt.Sscanf(line, "init %s @%g ms, %g ms clock, %d bytes", &pkg, &at, &clock, &n); err == nil {
			total += n
			if n > maxInit/4 {
				t.Errorf("the initialization of %s allocates %d bytes", pkg, n)
			}
		}
	}
	if total == 0 || total > maxInit {
		t.Errorf("the initialization of all packages allocates %d bytes, want at most %d:\n%s", total, maxInit, trace)
	}
	t.Logf("%d bytes before main", total)
}

// startListings starts a stack, and returns a function that runs a listing as a process. It returns the
// errors that were printed and the processor time.
func startListings(t *testing.T) (run func(env ...string) (errOut string, took time.Duration)) {
	t.Helper()
	address := fmt.Sprintf("@smcr-test-%d/startup", os.Getpid())
	l, err := nl.ListenUnix(address)
	if err != nil {
		t.Fatal(err)
	}
	s := nl.NewServer(nltest.NewFake(nltest.SampleState()), nl.ServerConfig{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func(env ...string) (string, time.Duration) {
		var out, errOut bytes.Buffer
		cmd := exec.CommandContext(t.Context(), exe)
		// The name of the program makes the test binary the program: see TestMain.
		cmd.Args = []string{"smcr", "linkgroup", "list", "--backend", "unix:" + address}
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, &errOut)
		}
		if !strings.HasPrefix(out.String(), "LG-ID") {
			t.Fatalf("printed %q", &out)
		}
		return errOut.String(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
}
