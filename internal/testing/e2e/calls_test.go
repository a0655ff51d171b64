// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// callNumbers are the system calls whose count of one connection does not depend on what else runs.
var callNumbers = map[string]int{
	"bind": unix.SYS_BIND, "bpf": unix.SYS_BPF, "close": unix.SYS_CLOSE, "connect": unix.SYS_CONNECT, "epoll_ctl": unix.SYS_EPOLL_CTL,
	"fcntl": unix.SYS_FCNTL, "getsockopt": unix.SYS_GETSOCKOPT, "sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO,
	"setsockopt": unix.SYS_SETSOCKOPT, "shutdown": unix.SYS_SHUTDOWN, "socket": unix.SYS_SOCKET,
}

// documentedCalls returns the table of the system calls of a connection in docs/architecture.md: how many of each.
func documentedCalls(t *testing.T) map[string]float64 {
	t.Helper()
	b, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "### The system calls of a connection\n")
	if !ok {
		t.Fatal("no section about system calls")
	}
	text, _, _ = strings.Cut(text, "\n#")
	calls := map[string]float64{}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		name := strings.Trim(cells[1], " `")
		if n, err := strconv.ParseFloat(strings.TrimSpace(cells[2]), 64); err == nil {
			calls[name] = n
		}
	}
	return calls
}

// TestCallsOfConnection: a connection makes no more system calls than the table in docs/architecture.md says, on either host. What
// commands and timers do does not count: many connections are compared with few.
func TestCallsOfConnection(t *testing.T) {
	const few, many = 20, 220
	want := documentedCalls(t)
	l := newLab(t)
	stacks := map[*netnstest.Host]*netnstest.Process{l.A: l.serve(l.A), l.B: l.serve(l.B)}
	l.probeServer()
	release(t, l.held(many)) // what is kept for further connections is there then
	l.wantNoConnections(l.A, l.B)
	counts := map[*netnstest.Host]*netnstest.Calls{}
	each := func(h *netnstest.Host) map[int]uint64 {
		t.Helper()
		all, err := counts[h].Each()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for h, p := range stacks {
		c, err := netnstest.CountCalls(p.Pid())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		counts[h] = c
	}
	// round returns how many calls a number of connections has made, on each host.
	round := func(n int) map[*netnstest.Host]map[int]uint64 {
		before, made := map[*netnstest.Host]map[int]uint64{}, map[*netnstest.Host]map[int]uint64{}
		time.Sleep(forgotten) // Real time: nothing tells that a connection is forgotten.
		for h := range stacks {
			before[h] = each(h)
		}
		release(t, l.held(n))
		time.Sleep(forgotten) // Real time: likewise.
		for h := range stacks {
			made[h] = each(h)
			for nr := range made[h] {
				made[h][nr] -= before[h][nr]
			}
		}
		return made
	}
	base, more := round(few), round(many)
	for h := range stacks {
		for name, nr := range callNumbers {
			n := (float64(more[h][nr]) - float64(base[h][nr])) / (many - few)
			t.Logf("%s: %s: %.2f", h.Name, name, n)
			if limit, ok := want[name]; !ok || n > limit+callsSlack {
				t.Errorf("%s: %.2f calls of %s for a connection, the table has %s", h.Name, n, name, fmt.Sprint(limit))
			}
		}
	}
}

const (
	// forgotten is real time: after it, a connection that has ended is forgotten, which nothing tells.
	forgotten = 3 * time.Second
	// callsSlack is for what timers do while there are connections.
	callsSlack = 0.5
)
