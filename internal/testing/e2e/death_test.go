// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// TestKill kills each process of a connection with SIGKILL. Every other process must see
// the end of the connection, the listings must not show it any more, and the next smcr run
// must work.
func TestKill(t *testing.T) {
	t.Parallel()
	kills(t, testkind.Patience)
}

// TestTimingKill: while the link works, the others see the end of TestKill within a second.
func TestTimingKill(t *testing.T) {
	testkind.Timing(t)
	kills(t, time.Second)
}

// kills is TestKill. The end must be seen within a time.
func kills(t *testing.T, within time.Duration) {
	t.Helper()
	const conns = 3
	for _, side := range []string{"server", "client"} {
		for _, victim := range []string{"program", "stack"} {
			t.Run(victim+" of "+side, func(t *testing.T) {
				if within == testkind.Patience {
					t.Parallel()
				}
				l := newLab(t)
				stackA, stackB := l.serve(l.A), l.serve(l.B)
				server := l.probeServer()
				client := l.held(conns)

				host, stack := l.A, stackA
				if side == "client" {
					host, stack = l.B, stackB
				}
				pid := stack.Pid()
				if victim == "program" {
					pids := l.programPids(host, bin("probe"))
					if len(pids) != 1 {
						t.Fatalf("probe processes %v, want one", pids)
					}
					pid = pids[0]
				}
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}

				// Every probe that still runs must see its connections end.
				watched := map[string]*netnstest.Process{}
				if side != "server" || victim == "stack" {
					watched["server"] = server
				}
				if side != "client" || victim == "stack" {
					watched["client"] = client
				}
				for name, p := range watched {
					want := "ended: "
					start := time.Now()
					err := netnstest.Until(within, func() error {
						if n := strings.Count(p.Log(), want); n < conns {
							return fmt.Errorf("the %s saw the end of %d of %d connections", name, n, conns)
						}
						return nil
					})
					if err != nil {
						t.Errorf("%v:\n%s", err, p.Log())
						continue
					}
					for line := range strings.Lines(p.Log()) {
						// When a stack is killed, connections are reset. In the other
						// cases they are closed.
						eof := victim != "stack" && strings.Contains(line, "EOF")
						if strings.Contains(line, want) && !eof && !strings.Contains(line, "reset") && !strings.Contains(line, "broken pipe") {
							t.Errorf("the %s saw %q", name, line)
						}
					}
					t.Logf("the %s saw it within %v", name, time.Since(start).Round(time.Millisecond))
				}
				if victim == "program" && side == "client" {
					// The host of the server works as before.
					release(t, l.held(1))
				}
				client.Kill()
				server.Kill()
				for _, pid := range append(l.programPids(l.A, bin("probe")), l.programPids(l.B, bin("probe"))...) {
					_ = unix.Kill(pid, unix.SIGKILL) // programs that nobody waits for any more
				}
				if victim == "stack" {
					<-stack.Done()
				}
				l.wantNoConnections(l.A, l.B)
				l.wantWorks()
			})
		}
	}
}

// wantWorks transfers data with new programs and checks that they use SMC-R.
func (l *lab) wantWorks() {
	l.t.Helper()
	w := l.watch()
	n := l.transfer(8081)
	w.stop(l.t).wantSMC(l.t, 1, n)
}

// wantWorksSoon is wantWorks after RoCE did not pass for a while: connections are TCP before one
// of them has found that it passes again.
func (l *lab) wantWorksSoon() {
	l.t.Helper()
	start := time.Now()
	port := 8080
	testkind.Eventually(l.t, "SMC-R is used again", func() (any, bool) {
		port++
		w := l.watch()
		n := l.transfer(port)
		wire := w.stop(l.t)
		ok := wire.SMCSYNs > 0 && wire.roce.Payload >= n
		if ok {
			wire.wantSMC(l.t, 1, n)
		}
		return fmt.Sprintf("%d SYN with SMC, %d bytes over RoCE", wire.SMCSYNs, wire.roce.Payload), ok
	})
	l.t.Logf("over SMC-R again after %v", time.Since(start).Round(time.Millisecond))
}

// transfer runs a web server and a web client under smcr run and returns the number of
// transferred bytes.
func (l *lab) transfer(port int) int64 {
	l.t.Helper()
	const size = 4 << 20
	addr := fmt.Sprintf("%s:%d", l.A.Addr(), port)
	server := l.under(l.A, bin("webserver"), "-listen", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	client := l.under(l.B, bin("webclient"), fmt.Sprintf("http://%s/bytes/%d", addr, size))
	if err := client.Wait(time.Minute); err != nil {
		l.t.Errorf("the next smcr run: %v\n%s", err, client.Log())
	}
	terminate(l.t, server)
	return size
}

// A host without power is noticed when something is sent to it: data, after the retries
// of the queue pair; on an idle link TEST LINK. RFC 7609 (section 4.5.1 and appendix
// A.3.7) leaves its interval to the implementation; Linux sends it after 30 s.
const (
	// vanishedBusy is less than the time after which TEST LINK would notice.
	vanishedBusy = 25 * time.Second
	vanishedIdle = 30*time.Second + testkind.Patience
)

// TestVanishedHost: if the peer does not answer any more, a connection ends with a reset.
// It must not end with an end of file, which means that all data has arrived.
func TestVanishedHost(t *testing.T) {
	t.Parallel()
	t.Run("link down", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		server, client := l.vanishing()
		if err := l.A.SetLink(0, false); err != nil {
			t.Fatal(err)
		}
		l.wantReset(client, vanishedBusy)
		if err := l.A.SetLink(0, true); err != nil {
			t.Fatal(err)
		}
		// As over TCP, nothing reaches a program by a device that is down.
		l.wantReset(server, vanishedBusy)
		l.wantNoConnections(l.A, l.B)
		terminate(t, server)
		l.wantWorks()
	})
	t.Run("silence, busy", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		server, client := l.vanishing("-busy")
		if err := l.Cut(0); err != nil {
			t.Fatal(err)
		}
		l.wantReset(client, vanishedBusy)
		l.wantWhy(client, "1 reset: transport retries exceeded (see 'smcr explain path-died')")
		if err := l.Uncut(0); err != nil {
			t.Fatal(err)
		}
		// The server has sent nothing that was not acknowledged, so it may not have
		// noticed anything. A new connection in any mode must work, and the server must
		// notice then. Afterwards everything works as before.
		l.transfer(8082)
		l.wantReset(server, vanishedIdle)
		l.wantNoConnections(l.A, l.B)
		terminate(t, server)
		l.wantWorksSoon()
	})
	t.Run("silence, idle", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		server, client := l.vanishing()
		if err := l.Cut(0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		l.wantReset(client, vanishedIdle)
		l.wantWhy(client, "1 reset: the peer did not answer TEST LINK (see 'smcr explain path-died')")
		l.wantReset(server, vanishedIdle-time.Since(start))
		l.wantNoConnections(l.A, l.B)
		if err := l.Uncut(0); err != nil {
			t.Fatal(err)
		}
		terminate(t, server)
		l.wantWorksSoon()
	})
}

// vanishing starts stacks, a probe server and a probe client with one connection.
func (l *lab) vanishing(args ...string) (server, client *netnstest.Process) {
	l.t.Helper()
	l.serve(l.A)
	l.serve(l.B)
	server = l.probeServer()
	return server, l.held(1, args...)
}

// wantReset checks that the connection of a probe is reset within d.
func (l *lab) wantReset(p *netnstest.Process, d time.Duration) {
	l.t.Helper()
	start := time.Now()
	if err := p.WaitOutput("ended: ", d); err != nil {
		l.t.Errorf("it noticed nothing: %v", err)
		return
	}
	saw := lastLine(p.Log(), "ended: ")
	l.t.Logf("noticed after %v: %s", time.Since(start).Round(time.Millisecond), saw)
	if !strings.HasSuffix(saw, "ended: reset") && !strings.HasSuffix(saw, "ended: broken pipe") {
		l.t.Errorf("it saw %q, want a reset", saw)
	}
}

// wantWhy checks that the summary of smcr run -v says why a connection was reset.
func (l *lab) wantWhy(p *netnstest.Process, why string) {
	l.t.Helper()
	if err := p.WaitOutput(why, endTime); err != nil {
		l.t.Errorf("%v, in\n%s", err, p.Log())
	}
}

// lastLine returns the last line of s that contains sub.
func lastLine(s, sub string) string {
	last := ""
	for line := range strings.Lines(s) {
		if strings.Contains(line, sub) {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// TestDiedStack: the log of a stack that was started on demand and died is kept. smcr
// info shows where it is, before and after the next stack starts.
func TestDiedStack(t *testing.T) {
	l := newLab(t)
	l.wantWorks()
	pids := l.stackPids(l.B)
	if len(pids) != 1 {
		t.Fatalf("stacks %v, want one", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGABRT); err != nil {
		t.Fatal(err)
	}
	if err := netnstest.Until(endTime, func() error {
		if len(l.stackPids(l.B)) > 0 {
			return errors.New("the stack runs")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	var said []byte
	for _, form := range []string{"", "--output=table"} { // the forms of smc-tools and of smcr
		args := []string{"--backend", "user", "info"}
		if form != "" {
			args = append(args, form)
		}
		// A process that ends loses its command line before it closes its log.
		if err := netnstest.Until(endTime, func() error {
			said, _ = l.B.Command(ctx, bin("smcr"), args...).CombinedOutput() // exit status 5
			if strings.Count(string(said), " died: ") != 1 {
				return fmt.Errorf("smcr %q without a stack: %s", args, said)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	name := regexp.MustCompile(`died: .* log (/run/smcr/\S+)`).FindSubmatch(said)
	if name == nil {
		t.Fatalf("smcr info without a stack: %s", said)
	}
	if b, err := os.ReadFile(string(name[1])); err != nil || !strings.Contains(string(b), "SIGABRT") {
		t.Errorf("log %q, %v", b, err)
	}
	l.wantWorks()
	out := l.smcr(l.B, "--backend", "user", "info", "--output", "table")
	m := regexp.MustCompile(`Previous Stack:\s.* log (/run/smcr/\S+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("smcr info with the next stack: %s", out)
	}
	if b, err := os.ReadFile(m[1]); err != nil || !strings.Contains(string(b), "SIGABRT") {
		t.Errorf("log %q, %v", b, err)
	}
	if out := l.smcr(l.B, "--backend", "user", "info", "--output", "json"); !strings.Contains(out, m[1]) {
		t.Errorf("smcr info --output json: %s", out)
	}
}
