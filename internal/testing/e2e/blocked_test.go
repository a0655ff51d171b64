// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// blockedServer answers each byte with the same byte.
const blockedServer = `
import socket, sys, threading
l = socket.create_server((sys.argv[1], 7), backlog=128)
print('listening', flush=True)
def serve(c):
    try:
        while b := c.recv(65536): c.sendall(b)
    except OSError: pass
    c.close()
while True: threading.Thread(target=serve, args=(l.accept()[0],)).start()
`

// blockedClient makes connections one after the other, n at the address, with a pause in s. It
// prints how long each took from connect to the answer to n bytes, in ms, and how many failed.
const blockedClient = `
import socket, sys, time
host, n, pause, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
failed = 0
for i in range(n):
    began = time.monotonic()
    try:
        c = socket.create_connection((host, 7), 30)
        c.sendall(b'x' * size)
        got = 0
        while got < size:
            b = c.recv(65536)
            if not b: raise OSError('end of file')
            got += len(b)
        c.close()
    except OSError as e:
        failed += 1
        print(f'connection {i}: {e}', flush=True)
    print(f'took {(time.monotonic() - began) * 1000:.0f}', flush=True)
    time.sleep(pause)
print(f'failed {failed}', flush=True)
`

var tookRE = regexp.MustCompile(`(?m)^took (\d+)$`)

// echoes runs blockedClient under smcr run on B, and returns how long the connections took and
// the log. No connection may fail.
func (l *lab) echoes(n int, pause time.Duration, size int) (took []time.Duration, log string) {
	l.t.Helper()
	p := l.under(l.B, "python3", "-c", blockedClient, l.A.Addr(), strconv.Itoa(n), fmt.Sprint(pause.Seconds()), strconv.Itoa(size))
	if err := p.WaitOutput("over SMC-R", 2*time.Minute+time.Duration(n)*pause); err != nil {
		l.t.Fatal(err)
	}
	log = p.Log()
	if !strings.Contains(log, "failed 0\n") {
		l.t.Errorf("connections failed:\n%s", log)
	}
	for _, m := range tookRE.FindAllStringSubmatch(log, -1) {
		ms, _ := strconv.Atoi(m[1])
		took = append(took, time.Duration(ms)*time.Millisecond)
	}
	if len(took) != n {
		l.t.Fatalf("%d connections, want %d:\n%s", len(took), n, log)
	}
	return took, log
}

// blockRoCE blocks RoCE in both directions, or unblocks it.
func blockRoCE(t *testing.T, over int, hosts ...*netnstest.Host) {
	t.Helper()
	for _, h := range hosts {
		if err := h.BlockRoCE(0, over); err != nil {
			t.Fatal(err)
		}
	}
}

// overSMCR returns how many connections a summary of smcr run -v tells of.
func overSMCR(t *testing.T, log string) (smcr, tcp int) {
	t.Helper()
	m := summaryRE.FindStringSubmatch(log)
	if m == nil {
		t.Fatalf("no summary in\n%s", log)
	}
	smcr, _ = strconv.Atoi(m[1])
	tcp, _ = strconv.Atoi(m[2])
	return smcr, tcp
}

// TestRoCEBlocked: where TCP passes and RoCE does not, no connection fails. The reason is told
// everywhere. SMC-R is used again within a minute after RoCE passes.
func TestRoCEBlocked(t *testing.T) {
	t.Parallel()
	roceBlocked(t, false, func(t *testing.T, took, again []time.Duration) {})
}

// TestTimingRoCEBlocked: the first connection of TestRoCEBlocked pays about half a second, and the
// others, also those of another program, nothing.
func TestTimingRoCEBlocked(t *testing.T) {
	testkind.Timing(t)
	roceBlocked(t, true, func(t *testing.T, took, again []time.Duration) {
		if took[0] > slow(time.Second) {
			t.Errorf("the first connection took %v", took[0])
		}
		for i, d := range append(took[1:], again...) {
			if d > slow(100*time.Millisecond) {
				t.Errorf("connection %d took %v", i+2, d)
			}
		}
	})
}

// roceBlocked is TestRoCEBlocked. check gets the times of the connections of two programs. If it is about them, the cases do not
// run beside each other.
func roceBlocked(t *testing.T, timing bool, check func(t *testing.T, took, again []time.Duration)) {
	for _, tt := range []struct {
		name  string
		over  int
		hosts func(l *lab) []*netnstest.Host
	}{
		{"both directions", 0, func(l *lab) []*netnstest.Host { return []*netnstest.Host{l.A, l.B} }},
		{"to the client", 0, func(l *lab) []*netnstest.Host { return []*netnstest.Host{l.B} }},
		{"to the server", 0, func(l *lab) []*netnstest.Host { return []*netnstest.Host{l.A} }},
		{"large packets", 600, func(l *lab) []*netnstest.Host { return []*netnstest.Host{l.A, l.B} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.name != "both directions" && tt.name != "large packets" {
				t.Skip("the short form")
			}
			if !timing {
				t.Parallel()
			}
			l := newLab(t, "python3")
			stack := l.serve(l.A)
			l.serve(l.B)
			server := l.under(l.A, "python3", "-u", "-c", blockedServer, l.A.Addr())
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			blockRoCE(t, tt.over, tt.hosts(l)...)
			took, log := l.echoes(6, 0, 20_000)
			t.Logf("with RoCE blocked: %v", took)
			if smcr, tcp := overSMCR(t, log); smcr != 0 || tcp != 6 {
				t.Errorf("%d connections over SMC-R and %d over TCP, want 6 over TCP", smcr, tcp)
			}
			if !strings.Contains(log, "is UDP port 4791 open?") || !strings.Contains(log, "smcr explain roce-blocked") {
				t.Errorf("the reason is missing:\n%s", log)
			}
			again, log := l.echoes(3, 0, 20_000) // another program
			t.Logf("the second program: %v", again)
			if smcr, _ := overSMCR(t, log); smcr != 0 {
				t.Errorf("%d connections over SMC-R", smcr)
			}
			if out := l.smcr(l.A, "--backend", "user", "info", "-o", "table"); !strings.Contains(out, "all users: ") || !strings.Contains(out, l.B.Addr()+" from "+l.A.Addr()+", roce-blocked, ") {
				t.Errorf("info:\n%s", out)
			}
			out, err := l.try(l.B, "--backend", "user", "check", l.A.Addr()+":7")
			if err == nil || !strings.Contains(out, "UDP port 4791") {
				t.Errorf("smcr check: %v\n%s", err, out)
			}
			check(t, took, again)
			if err := stack.WaitOutput("RoCE does not pass to a peer", commandTime); err != nil {
				t.Error(err)
			}
			if n := strings.Count(stack.Log(), "RoCE does not pass to a peer"); n != 1 {
				t.Errorf("the log has %d warnings", n)
			}
			blockRoCE(t, -1, tt.hosts(l)...)
			testkind.Eventually(t, "SMC-R is used again", func() (any, bool) {
				_, log := l.echoes(1, 0, 20_000)
				return log, strings.Contains(log, "1 connection over SMC-R")
			})
		})
	}
}

// slow returns a limit for a machine that other tests use too.
func slow(d time.Duration) time.Duration { return d + 400*time.Millisecond }

// TestRoCEFlaps: while RoCE passes and does not in turns, no connection fails.
func TestRoCEFlaps(t *testing.T) {
	t.Parallel()
	roceFlaps(t)
}

// TestTimingRoCEFlaps: of the connections of TestRoCEFlaps, none takes more than a second, apart
// from one that has data under way over SMC-R when the path dies.
func TestTimingRoCEFlaps(t *testing.T) {
	testkind.Timing(t)
	took, times := roceFlaps(t)
	late := 0
	for _, d := range took {
		if d > slow(time.Second) {
			late++
		}
	}
	t.Logf("%d took more than a second", late)
	// Each time that RoCE is blocked, one connection at most has just begun: its data is under
	// way, and waits.
	if late > times {
		t.Errorf("%d connections took more than a second, and RoCE was blocked %d times: %v", late, times, took)
	}
}

// roceFlaps is TestRoCEFlaps. It returns how long each connection took, and how often RoCE was
// blocked.
func roceFlaps(t *testing.T) (took []time.Duration, times int) {
	t.Helper()
	l := newLab(t, "python3")
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.A, "python3", "-u", "-c", blockedServer, l.A.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	n := 500
	if testing.Short() {
		n = 120
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for over := -1; ; over = -1 - over {
			if over >= 0 {
				times++
			}
			for _, h := range []*netnstest.Host{l.A, l.B} {
				if err := h.BlockRoCE(0, over); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Second): // Real time: so long RoCE passes, or does not.
			}
		}
	}()
	took, log := l.echoes(n, 50*time.Millisecond, 100)
	close(stop)
	<-done
	smcr, tcp := overSMCR(t, log)
	t.Logf("%d over SMC-R, %d over TCP", smcr, tcp)
	return took, times
}
