// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/netnstest"
)

// deathTime is within what the others must see a death on their host or on the
// one across a working link.
const deathTime = time.Second

// TestKill kills without warning each process that takes part in a connection
// and wants every other one to see the end of the connection within a second,
// the listings to forget it, and the next smcr run to work.
func TestKill(t *testing.T) {
	const conns = 3
	for _, side := range []string{"server", "client"} {
		for _, victim := range []string{"program", "launcher", "stack"} {
			t.Run(victim+" of "+side, func(t *testing.T) {
				l := newLab(t)
				stackA, stackB := l.serve(l.A), l.serve(l.B)
				server := l.probeServer()
				client := l.held(conns)

				host, launcher, stack := l.A, server, stackA
				if side == "client" {
					host, launcher, stack = l.B, client, stackB
				}
				pid := launcher.Pid()
				switch victim {
				case "program":
					pids := l.programPids(host, bin("probe"))
					if len(pids) != 1 {
						t.Fatalf("probe processes %v, want one", pids)
					}
					pid = pids[0]
				case "stack":
					pid = stack.Pid()
				}
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}

				// The death of a launcher need not be that of its program; every
				// probe that still runs must see its connections end.
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
					err := netnstest.Until(deathTime, func() error {
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
						if strings.Contains(line, want) && !strings.Contains(line, "EOF") && !strings.Contains(line, "reset") && !strings.Contains(line, "broken pipe") {
							t.Errorf("the %s saw %q", name, line)
						}
					}
					t.Logf("the %s saw it within %v", name, time.Since(start).Round(time.Millisecond))
				}
				if victim == "launcher" && side == "client" || victim == "program" && side == "client" {
					// The server's host is whole: it goes on serving.
					release(t, l.held(1))
				}
				client.Kill()
				server.Kill()
				for _, pid := range append(l.programPids(l.A, bin("probe")), l.programPids(l.B, bin("probe"))...) {
					_ = unix.Kill(pid, unix.SIGKILL) // programs that outlived their launcher
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

// wantWorks transfers something with new programs and wants SMC-R used.
func (l *lab) wantWorks() {
	l.t.Helper()
	const size = 4 << 20
	server := l.under(l.A, bin("webserver"), "-listen", l.A.Addr()+":8081")
	if err := server.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	w := l.watch()
	client := l.under(l.B, bin("webclient"), fmt.Sprintf("http://%s:8081/bytes/%d", l.A.Addr(), size))
	if err := client.Wait(time.Minute); err != nil {
		l.t.Errorf("the next smcr run: %v\n%s", err, client.Log())
	}
	w.stop(l.t).wantSMC(l.t, 1, size)
	terminate(l.t, server)
}

// A host that vanishes is noticed by what is sent to it: data, after the queue
// pair's retries; on an idle link TEST LINK, which RFC 7609 (section 4.5.1 and
// appendix A.3.7) leaves to the implementation and Linux sends after 30 s.
const (
	vanishedBusy = 15 * time.Second
	vanishedIdle = 45 * time.Second
)

func TestVanishedHost(t *testing.T) {
	for _, test := range []struct {
		name  string
		args  []string
		bound time.Duration
		end   func(l *lab) error
		undo  func(l *lab) error
	}{
		{
			"link down", nil, vanishedBusy,
			func(l *lab) error { return l.A.SetLink(0, false) },
			func(l *lab) error { return l.A.SetLink(0, true) },
		},
		{
			"silence, busy", []string{"-busy"}, vanishedBusy,
			func(l *lab) error { return l.Cut(0) },
			func(l *lab) error { return l.Uncut(0) },
		},
		{
			"silence, idle", nil, vanishedIdle,
			func(l *lab) error { return l.Cut(0) },
			func(l *lab) error { return l.Uncut(0) },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t)
			l.serve(l.A)
			l.serve(l.B)
			server := l.probeServer()
			client := l.held(1, test.args...)
			if err := test.end(l); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for name, p := range map[string]*netnstest.Process{"client": client, "server": server} {
				if err := p.WaitOutput("ended: ", test.bound-time.Since(start)); err != nil {
					t.Errorf("the %s noticed nothing: %v", name, err)
					continue
				}
				t.Logf("the %s noticed after %v: %s", name, time.Since(start).Round(time.Millisecond), lastLine(p.Log(), "ended: "))
			}
			l.wantNoConnections(l.A, l.B)
			if err := test.undo(l); err != nil {
				t.Fatal(err)
			}
			client.Kill()
			terminate(t, server)
			// The address of a link that was down comes back with the link.
			l.wantWorks()
		})
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
