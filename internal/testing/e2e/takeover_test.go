// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/internal/testing/netnstest"
)

// keeper keeps connections to the server of blockEcho open and transfers data over all of
// them. It opens as many again for each line that it reads, and says how many exchanges
// each connection has made.
const keeper = `
import os, socket, sys, threading, time
addr, n = (sys.argv[1], 7200), int(sys.argv[2])
block = os.urandom(50000)
done, lock = [], threading.Lock()
def say(*words):
    with lock: os.write(1, (' '.join(map(str, words)) + '\n').encode())
def hold(i):
    try:
        s = socket.create_connection(addr)
        while True:
            b = os.urandom(8) + block
            s.sendall(len(b).to_bytes(4, 'big') + b)
            got = b''
            while len(got) < len(b):
                more = s.recv(len(b) - len(got))
                if not more: raise OSError('end of the stream')
                got += more
            if got != b: raise OSError('wrong data')
            if done[i] == 0: say('made')
            done[i] += 1
            time.sleep(0.005)
    except OSError as e:
        say('FAILED', i, e)
while True:
    for _ in range(n):
        done.append(0)
        threading.Thread(target=hold, args=(len(done) - 1,), daemon=True).start()
    if not sys.stdin.readline(): break
    say('exchanged', *done)
`

// exchanged returns what the last line of a keeper says.
func exchanged(t testing.TB, p *netnstest.Process) (counts []int) {
	t.Helper()
	for _, s := range strings.Fields(lastLine(p.Log(), "exchanged"))[1:] {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, n)
	}
	return counts
}

// takeOver starts a stack that takes over from that of a host. It returns when it serves.
func (l *lab) takeOver(h *netnstest.Host, args ...string) *netnstest.Process {
	l.t.Helper()
	p := h.Go(l.t, bin("smcr"), append([]string{"serve", "--no-default-eid", "--takeover"}, args...)...)
	if err := p.WaitOutput(saysServing, startTime); err != nil {
		l.t.Fatal(err, p.Log())
	}
	return p
}

// What the log of a stack says.
const (
	saysServing = "msg=serving"
	saysOver    = "another process is the stack now"
)

// received returns the bytes that the programs of a host have received, as the statistics
// of its stack say.
func (l *lab) received(h *netnstest.Host) (bytes int) {
	l.t.Helper()
	var rows []struct {
		SMCR struct {
			RX struct{ Bytes int }
		}
	}
	out := l.smcr(h, "--backend", "user", "stats", "show", "--output", "json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) == 0 {
		l.t.Fatal(err, out)
	}
	for _, r := range rows {
		bytes += r.SMCR.RX.Bytes
	}
	return bytes
}

// dirOf returns the directory of the stack of a host.
func (l *lab) dirOf(h *netnstest.Host) string {
	l.t.Helper()
	var cookie string
	if err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		v, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		cookie = strconv.FormatUint(v, 10)
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	return filepath.Join("/run/smcr", cookie)
}

// placeOf returns the names in the directory of the stack of a host.
func (l *lab) placeOf(h *netnstest.Host) (names []string) {
	l.t.Helper()
	entries, err := os.ReadDir(l.dirOf(h))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// wantListed checks that the listings of a host show the rows of a stack and of those that have
// handed over to it, and that each of these can be asked alone.
func (l *lab) wantListed(h *netnstest.Host, ending int) {
	l.t.Helper()
	want := []string{"user"}
	for n := range ending {
		want = append(want, "ending-"+strconv.Itoa(n))
	}
	slices.Sort(want)
	for _, line := range []string{"linkgroup list", "link list", "device list", "stats show"} {
		var rows []struct{ Stack string }
		args := append([]string{"--backend", "user"}, strings.Fields(line)...)
		if err := json.Unmarshal([]byte(l.smcr(h, append(args, "--output", "json")...)), &rows); err != nil {
			l.t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, r.Stack)
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			l.t.Errorf("smcr %s shows the stacks %q, want %q", line, got, want)
		}
	}
	for _, name := range want {
		if out := l.smcr(h, "--backend", name, "connection", "list"); !strings.Contains(out, name) {
			l.t.Errorf("the connections of %s:\n%s", name, out)
		}
	}
}

func countPrefix(names []string, prefix string) (n int) {
	for _, s := range names {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// TestManyTakeovers: a connection that never ends, in each stack that has handed over, does not
// prevent a takeover. The oldest stack ends, says how many connections it resets, and the others go on.
func TestManyTakeovers(t *testing.T) {
	l := newLab(t)
	l.serve(l.B)
	stacks := []*netnstest.Process{l.serve(l.A)}
	l.probeServer()
	var clients []*netnstest.Process
	for range place.Parts + 1 {
		clients = append(clients, l.held(1))
		stacks = append(stacks, l.takeOver(l.A))
	}
	first := stacks[0]
	wantEnd(t, first)
	if line := lastLine(first.Log(), "told to end"); !regexp.MustCompile(`connections=[1-9]`).MatchString(line) {
		t.Errorf("the first stack says %q:\n%s", line, first.Log())
	}
	for i, s := range stacks[2:] {
		select {
		case <-s.Done():
			t.Errorf("stack %d has ended:\n%s", i+2, s.Log())
		default:
		}
	}
	said := 0
	for _, s := range stacks {
		said += strings.Count(s.Log(), "the oldest one ends")
	}
	if said != 2 {
		t.Errorf("%d stacks say that the oldest one ends, want 2", said)
	}
	info := l.smcr(l.A, "--backend", "user", "info", "-o", "table")
	t.Log(info)
	if want := fmt.Sprintf(" %d stacks", place.Parts-1); !strings.Contains(lastLine(info, "Draining"), want) {
		t.Errorf("info does not say that %s stacks are draining:\n%s", want, info)
	}
	for _, c := range clients {
		c.Kill()
	}
	for _, s := range stacks[2 : len(stacks)-1] {
		wantEnd(t, s)
	}
	if info := l.smcr(l.A, "--backend", "user", "info", "-o", "table"); strings.Contains(info, "Draining") {
		t.Errorf("at the end: %s", info)
	}
}
