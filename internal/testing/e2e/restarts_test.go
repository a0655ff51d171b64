// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// blockEcho is a server whose connections begin with the length of the data that follows.
const blockEcho = `
import socket, sys, threading
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], 7200)); l.listen(128)
print('listening', flush=True)
def take(c, n):
    got = b''
    while len(got) < n:
        more = c.recv(n - len(got))
        if not more: return b''
        got += more
    return got
def serve(c):
    try:
        with c:
            while True:
                n = int.from_bytes(take(c, 4), 'big')
                if n == 0: return
                c.sendall(take(c, n))
    except OSError: pass
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
`

// loader makes connections all the time, with some messages on each. For each it writes a
// line: when it began, was connected and ended, and how it ended. Each carries enough data not to count as a short connection.
const loader = `
import os, socket, sys, threading, time
addr, out, threads = (sys.argv[1], 7200), open(sys.argv[2], 'a', buffering=1), int(sys.argv[3])
block = os.urandom(100000)
def take(c, n):
    got = b''
    while len(got) < n:
        more = c.recv(n - len(got))
        if not more: break
        got += more
    return got
def once(timeout):
    begin, made, how = time.monotonic(), 0, 'ok'
    try:
        with socket.create_connection(addr, timeout=timeout) as s:
            made = time.monotonic()
            for _ in range(4):
                s.sendall(len(block).to_bytes(4, 'big') + block)
                if take(s, len(block)) != block:
                    raise OSError('wrong data, or the end of the stream')
    except OSError as e:
        how = str(e).replace(' ', '_')
    out.write('%.6f %.6f %.6f %s\n' % (begin, made or time.monotonic(), time.monotonic(), how))
def load(i):
    while True:
        once(None)
        time.sleep(0.02)
for i in range(threads): threading.Thread(target=load, args=(i,), daemon=True).start()
print('loading', flush=True)
sys.stdin.read()
`

// monotonic returns the time in the form of the lines of loader.
func monotonic() float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return float64(ts.Nano()) / 1e9
}

// attempt is a line of loader.
type attempt struct {
	begin, made, end float64
	how              string
}

// attempts reads the file of a loader.
type attempts struct {
	file *os.File
	in   *bufio.Reader
	part string
	all  []attempt
}

func (a *attempts) read(t *testing.T) {
	t.Helper()
	for {
		s, err := a.in.ReadString('\n')
		a.part += s
		if err != nil {
			return // no more lines yet
		}
		var x attempt
		if _, err := fmt.Sscan(a.part, &x.begin, &x.made, &x.end, &x.how); err != nil {
			t.Fatalf("%v in %q", err, a.part)
		}
		a.part = ""
		a.all = append(a.all, x)
	}
}

// restart has the times of a restart: when the signal was sent, when the process had
// ended, and when the next stack answered.
type restart struct{ signal, dead, up float64 }

// againTime is how soon new connections use a new stack: most of them, and each within ten times
// that, because a busy machine may give a process no time for seconds.
const againTime = 2 * time.Second

// noticeTime is how long a stack may take to notice a signal, in seconds. It may have no processor for a while.
const noticeTime = 0.2

// someAgain is how many connections must use a stack before it is ended.
const someAgain = 20

// TestRestarts ends the stack of either host again and again while a server and its
// clients run. Each time, new connections are over SMC-R. Only connections over SMC-R that were
// open when the stack ended are reset. SMCR_E2E_ROUNDS is the number of rounds.
func TestRestarts(t *testing.T) { restarts(t) }

// TestTimingRestarts: after each end of TestRestarts, new connections are over SMC-R within
// againTime.
func TestTimingRestarts(t *testing.T) {
	testkind.Timing(t)
	times := restarts(t)
	if most := times[len(times)-1]; most > 10*againTime {
		t.Errorf("SMC-R again after %v", most)
	}
	if median := times[len(times)/2]; median > againTime {
		t.Errorf("SMC-R again after %v (median)", median)
	}
}

// again waits until the second host has made some connections over SMC-R from now on. It returns the time from since to the
// first of them, as far as the stack shows it.
func (l *lab) again(since float64) (took time.Duration, err error) {
	made := func() (n int, err error) {
		out, err := l.try(l.B, "--backend", "user", "stats", "-o", "json")
		if err != nil {
			return 0, netnstest.Stop(err)
		}
		var stats []struct {
			SMCR struct {
				V1 int `json:"client_v1"`
				V2 int `json:"client_v2"`
			}
		}
		if err := json.Unmarshal([]byte(out), &stats); err != nil || len(stats) != 1 {
			return 0, netnstest.Stop(fmt.Errorf("%w in %s", err, out))
		}
		return stats[0].SMCR.V1 + stats[0].SMCR.V2, nil
	}
	before, err := made()
	if err != nil {
		return 0, err
	}
	err = netnstest.Until(startTime, func() error {
		n, err := made()
		if took == 0 && n > before {
			took = time.Duration((monotonic() - since) * 1e9)
		}
		if err == nil && n-before < someAgain {
			err = fmt.Errorf("%d connections over SMC-R, want %d", n-before, someAgain)
		}
		return err
	})
	return took, err
}

// restarts is TestRestarts. It returns after how long connections were over SMC-R again, the
// shortest time first.
func restarts(t *testing.T) (times []time.Duration) {
	t.Helper()
	rounds := 12 // each signal thrice at each host
	if s := os.Getenv("SMCR_E2E_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	l := newLab(t, "/usr/bin/python3")
	hosts := []*netnstest.Host{l.A, l.B}
	stacks := map[*netnstest.Host]*netnstest.Process{l.A: l.serve(l.A), l.B: l.serve(l.B)}
	server := l.under(l.A, "/usr/bin/python3", "-u", "-c", blockEcho, l.A.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	var client *netnstest.Process
	load := func(name string, threads int, argv ...string) *attempts {
		path := filepath.Join(t.TempDir(), name)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		cmd := l.B.Command(t.Context(), argv[0], append(argv[1:], "/usr/bin/python3", "-u", "-c", loader, l.A.Addr(), path, strconv.Itoa(threads))...)
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		p := l.B.GoCmd(t, cmd)
		if err := p.WaitOutput("loading", startTime); err != nil {
			t.Fatal(err)
		}
		if name == "smc" {
			client = p
		}
		return &attempts{file: f, in: bufio.NewReader(f)}
	}
	smc := load("smc", 4, bin("smcr"), "run", "--mode", "user", "-v", "--")
	plain := load("plain", 1, "env")
	if _, err := l.again(monotonic()); err != nil {
		t.Fatal(err)
	}
	var ends []restart
	for n := range rounds {
		h := hosts[n/2%2]
		r := restart{signal: monotonic()}
		if err := stacks[h].Signal([]os.Signal{unix.SIGTERM, unix.SIGKILL}[n%2]); err != nil {
			t.Fatal(err)
		}
		<-stacks[h].Done()
		r.dead = monotonic()
		stacks[h] = l.serve(h)
		r.up = monotonic()
		ends = append(ends, r)
		took, err := l.again(r.up)
		if err != nil {
			t.Fatalf("restart %d, of %s: %v\nserver: %s\nclient: %s\n%+v", n, h.Name, err, lastLine(server.Log(), "stack"), lastLine(client.Log(), "stack"), smc.all[max(0, len(smc.all)-5):])
		}
		times = append(times, took)
	}
	smc.read(t)
	plain.read(t)
	for name, a := range map[string]*attempts{"under smcr run": smc, "plain": plain} {
		resets := 0
		for _, x := range a.all {
			if x.how == "ok" {
				continue
			}
			resets++
			wasOpen := slices.ContainsFunc(ends, func(r restart) bool { return x.begin <= r.signal+noticeTime && x.end >= r.signal })
			reset := strings.Contains(x.how, "reset_by_peer") || strings.Contains(x.how, "Broken_pipe") // EPIPE if it writes
			if !reset || name == "plain" || !wasOpen {
				i, _ := slices.BinarySearchFunc(ends, x.end, func(r restart, at float64) int {
					if r.signal < at {
						return -1
					}
					return 1
				})
				r := ends[max(i-1, 0)]
				t.Errorf("%s: a connection: %s. After the end of stack %d (gone in %.3f s, next up in %.3f s) it began at %.3f s, was made at %.3f s and ended at %.3f s",
					name, x.how, i-1, r.dead-r.signal, r.up-r.signal, x.begin-r.signal, x.made-r.signal, x.end-r.signal)
			}
		}
		t.Logf("%s: %d connections, %d of them reset", name, len(a.all), resets)
	}
	slices.Sort(times)
	t.Logf("SMC-R again after %d restarts: minimum %v, median %v, maximum %v", len(times), times[0], times[len(times)/2], times[len(times)-1])
	return times
}
