// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// held starts a probe client that holds n connections to the probe server on host A. It
// returns when all have exchanged their first message.
func (l *lab) held(n int, args ...string) *netnstest.Process {
	l.t.Helper()
	c := l.under(l.B, append([]string{bin("probe"), "client", l.A.Addr() + ":7", strconv.Itoa(n)}, args...)...)
	if err := c.WaitOutput(fmt.Sprintf("holding %d connections\n", n), time.Minute); err != nil {
		l.t.Fatal(err)
	}
	return c
}

// release ends a probe client in order.
func release(t testing.TB, c *netnstest.Process) {
	t.Helper()
	terminate(t, c)
	if !strings.Contains(c.Log(), "closed\n") {
		t.Errorf("the client did not close its connections:\n%s", c.Log())
	}
}

// probeServer starts the probe server on host A under smcr run.
func (l *lab) probeServer() *netnstest.Process {
	l.t.Helper()
	p := l.under(l.A, bin("probe"), "server", l.A.Addr()+":7")
	if err := p.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// footprint has the resources of a stack: descriptors, and the objects in its listings.
type footprint struct {
	descriptors int
	links       int
	linkGroups  int
}

func (l *lab) footprint(h *netnstest.Host, stack *netnstest.Process) (footprint, error) {
	var f footprint
	var err error
	if f.descriptors, err = descriptors(stack.Pid()); err != nil {
		return f, err
	}
	links, err := l.rows(h, "link")
	if err != nil {
		return f, err
	}
	groups, err := l.rows(h, "linkgroup")
	f.links, f.linkGroups = len(links), len(groups)
	return f, err
}

// stocked is how many descriptors more a stack may have than before: it has 16 to 32 sockets of a family in stock.
const stocked = 16

// more returns an error if there is more than before. base has the fewest descriptors that there were, so that a leak adds up.
func (f *footprint) more(base *footprint) error {
	base.descriptors = min(base.descriptors, f.descriptors)
	if f.descriptors > base.descriptors+stocked || f.links != base.links || f.linkGroups != base.linkGroups {
		return fmt.Errorf("%+v, %+v before", *f, *base)
	}
	return nil
}

// TestFootprint: a leak of one descriptor in 60 connections is seen after 1,000 of them.
func TestFootprint(t *testing.T) {
	base := footprint{descriptors: 100, links: 1, linkGroups: 1}
	for _, c := range []struct {
		now  footprint
		more bool
	}{
		{footprint{116, 1, 1}, false}, {footprint{117, 1, 1}, true}, {footprint{90, 1, 1}, false}, {footprint{107, 1, 1}, true},
		{footprint{90, 2, 1}, true}, {footprint{90, 1, 0}, true},
	} {
		if err := c.now.more(&base); (err != nil) != c.more {
			t.Errorf("%+v: %v", c.now, err)
		}
	}
}

func TestManyConnections(t *testing.T) {
	const n = 200
	l := newLab(t)
	stacks := map[*netnstest.Host]*netnstest.Process{l.A: l.serve(l.A), l.B: l.serve(l.B)}
	server := l.probeServer()

	// The first connection makes the link group, which remains.
	release(t, l.held(1))
	l.wantNoConnections(l.A, l.B)
	base := map[*netnstest.Host]*footprint{}
	for h, stack := range stacks {
		f, err := l.footprint(h, stack)
		if err != nil {
			t.Fatal(err)
		}
		if f.linkGroups != 1 {
			t.Errorf("%d link groups on %s, want one", f.linkGroups, h.Name)
		}
		base[h] = &f
	}
	for round := range 2 {
		w := l.watch()
		c := l.held(n)
		for h := range stacks {
			groups, conns, err := l.groupConns(h)
			if err != nil || groups != 1 || conns != n {
				t.Errorf("round %d: %d link groups with %d connections on %s (%v), want 1 with %d", round, groups, conns, h.Name, err, n)
			}
			rows, err := l.rows(h, "connection")
			if err != nil || len(rows) != n {
				t.Errorf("round %d: %d connections listed on %s (%v), want %d", round, len(rows), h.Name, err, n)
			}
		}
		release(t, c)
		l.wantNoConnections(l.A, l.B)
		w.stop(t).wantSMC(t, n, 2*n*1024)

		l.noMore(stacks, base, fmt.Sprint("round ", round))
	}
	// RMBs are kept for reuse, so the second round needs no more memory than the first. A
	// leak of 200 elements of 256 KiB in each round would be visible.
	for h, stack := range stacks {
		before, err := resident(stack.Pid())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			release(t, l.held(n))
		}
		l.wantNoConnections(l.A, l.B)
		after, err := resident(stack.Pid())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("stack of %s: %d MiB resident, %d MiB after 600 more connections", h.Name, before>>20, after>>20)
		if after > before+50<<20 && !raceDetector { // its shadow memory grows
			t.Errorf("the stack of %s grew from %d to %d MiB over 600 connections", h.Name, before>>20, after>>20)
		}
	}
	l.noMore(stacks, base, "at the end")
	terminate(t, server)
}

// noMore waits until nothing of connections remains: there are no more descriptors, links or groups than before.
func (l *lab) noMore(stacks map[*netnstest.Host]*netnstest.Process, base map[*netnstest.Host]*footprint, when string) {
	l.t.Helper()
	for h, stack := range stacks {
		err := netnstest.Until(settleTime, func() error {
			f, err := l.footprint(h, stack)
			if err != nil {
				return netnstest.Stop(err)
			}
			if err := f.more(base[h]); err != nil {
				return fmt.Errorf("%s: the stack of %s holds %w", when, h.Name, err)
			}
			return nil
		})
		if err != nil {
			l.t.Error(err)
		}
	}
}

// resident returns the resident memory of a process in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0, err
	}
	return pages * int64(os.Getpagesize()), nil
}
