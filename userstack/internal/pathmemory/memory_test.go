// SPDX-License-Identifier: Apache-2.0

package pathmemory

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smcr/quota"
)

var start = time.Unix(1_000_000, 0)

func path(remote string) Path {
	return Path{IfIndex: 2, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr(remote)}
}

// TestVerdicts: the rows of the table at Memory.
func TestVerdicts(t *testing.T) {
	const longest = 30 * time.Second
	p := path("10.0.0.2")
	m, now := New(), start
	wait := func(d time.Duration) { now = now.Add(d) }
	try := func(want Verdict) {
		t.Helper()
		if got := m.Ask(now, p); got != want {
			t.Errorf("at +%v: Ask says %d, want %d", now.Sub(start), got, want)
		}
		if got := m.Try(now, p); got != want {
			t.Errorf("at +%v: Try says %d, want %d", now.Sub(start), got, want)
		}
	}
	try(Open)
	try(Open)
	if m.FailedSince(start, p) {
		t.Error("an open path has failed")
	}
	pause := FirstPause
	for i := range 6 {
		if first := m.Failed(now, p, longest); first != (i == 0) {
			t.Errorf("failure %d is the first: %v", i, first)
		}
		if got := m.All(now); !slices.Equal(got, []Known{{p, pause}}) {
			t.Errorf("failure %d: %v, want a pause of %v", i, got, pause)
		}
		try(Blocked)
		wait(pause - 1)
		try(Blocked)
		wait(1)
		try(Retry)
		try(Blocked) // somebody tries
		wait(tryTime - 1)
		try(Blocked)
		wait(1)
		try(Retry) // that one did not try
		if !m.FailedSince(now.Add(-pause-tryTime), p) || m.FailedSince(now.Add(-pause-tryTime+1), p) {
			t.Errorf("failure %d: wrong time", i)
		}
		pause = min(2*pause, longest)
	}
	// The path to another host, over another netdev, or from another address, is open.
	for _, o := range []Path{path("10.0.0.3"), {IfIndex: 3, Local: p.Local, Remote: p.Remote}, {IfIndex: 2, Local: p.Remote, Remote: p.Remote}} {
		if v := m.Try(now, o); v != Open {
			t.Errorf("%v: verdict %d", o, v)
		}
	}
	if !m.Works(p) || m.Works(p) {
		t.Error("the first Works is not the only one that is new")
	}
	try(Open)
	if m.Failed(now, p, longest); m.Ask(now.Add(FirstPause), p) != Retry {
		t.Error("the pause begins again after Works")
	}
}

// TestTold: what the peer says is no failure: the pause does not grow.
func TestTold(t *testing.T) {
	p := path("10.0.0.2")
	m := New()
	m.Told(start, p)
	if m.Ask(start, p) != Blocked || m.Ask(start.Add(FirstPause), p) != Retry || m.FailedSince(start, p) {
		t.Error("a path that the peer has told of is not blocked, or has failed")
	}
	for range 5 {
		m.Told(start, p)
	}
	if m.Ask(start.Add(FirstPause), p) != Retry {
		t.Error("the pause grows")
	}
	m.Failed(start, p, time.Minute)
	m.Failed(start, p, time.Minute)
	m.Told(start, p)
	if m.Ask(start.Add(2*FirstPause-1), p) != Blocked {
		t.Error("Told shortens a pause")
	}
}

// TestSuspect: the next connection tries at once, and the others wait for it.
func TestSuspect(t *testing.T) {
	p := path("10.0.0.2")
	m := New()
	m.Suspect(start, p)
	if m.Try(start, p) != Retry || m.Try(start, p) != Blocked {
		t.Error("not one connection tries")
	}
	m.Failed(start, p, time.Minute)
	m.Suspect(start, p)
	if m.Ask(start.Add(FirstPause-1), p) != Blocked {
		t.Error("Suspect shortens a pause")
	}
}

// TestForget: a path that nobody uses is forgotten.
func TestForget(t *testing.T) {
	p := path("10.0.0.2")
	m := New()
	m.Failed(start, p, time.Minute)
	at := start.Add(FirstPause + forgetAfter)
	if got := m.All(at.Add(-1)); !slices.Equal(got, []Known{{p, 0}}) {
		t.Errorf("%v", got)
	}
	if m.Len(at.Add(-1)) != 1 || m.Len(at) != 0 || m.Ask(at, p) != Open {
		t.Error("not forgotten in time")
	}
}

// TestBounds: the memory has a size. A host that fills it displaces its own paths, or those of
// the host with the most, and never the only one of another host.
func TestBounds(t *testing.T) {
	m := New()
	honest := path("192.0.2.1")
	m.Failed(start, honest, time.Minute)
	for i := range 3 * MaxPathsOfHost { // one host: a subnet
		m.Failed(start.Add(time.Duration(i)), path(fmt.Sprintf("fd00::%x", i+1)), time.Minute)
	}
	if n := m.Len(start); n != MaxPathsOfHost+1 {
		t.Errorf("%d paths, want %d", n, MaxPathsOfHost+1)
	}
	if m.Ask(start, path("fd00::1")) != Open || m.Ask(start, path(fmt.Sprintf("fd00::%x", 3*MaxPathsOfHost))) != Blocked {
		t.Error("not the oldest one was forgotten")
	}
	for i := range 2 * MaxPaths {
		for j := range 2 {
			m.Failed(start.Add(time.Second), path(fmt.Sprintf("fd01:0:0:%x::%x", i%(MaxPaths/2), 2*(i/(MaxPaths/2))+j+1)), time.Minute)
		}
	}
	if n := m.Len(start); n != MaxPaths {
		t.Errorf("%d paths, want %d", n, MaxPaths)
	}
	if m.Ask(start, honest) != Blocked {
		t.Error("the path of a host with one was displaced")
	}
	check(t, m)
}

// check verifies the counts of m.
func check(t *testing.T, m *Memory) {
	t.Helper()
	hosts := map[netip.Addr]int{}
	for p := range m.paths {
		hosts[quota.Host(p.Remote)]++
	}
	if len(hosts) != len(m.hosts) {
		t.Fatalf("%d hosts, counted %d", len(hosts), len(m.hosts))
	}
	for h, n := range hosts {
		if m.hosts[h] != n || n > MaxPathsOfHost {
			t.Fatalf("host %s has %d paths, counted %d", h, n, m.hosts[h])
		}
	}
}

// TestRandom: whatever happens, the counts are right and nothing exceeds its bound.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m, now := New(), start
	for range 20_000 {
		now = now.Add(time.Duration(r.Int64N(int64(time.Minute))))
		p := path(fmt.Sprintf("fd00:0:0:%x::%x", r.IntN(100), r.IntN(30)))
		switch r.IntN(6) {
		case 0, 1:
			m.Failed(now, p, time.Minute)
		case 2:
			m.Told(now, p)
		case 3:
			m.Try(now, p)
		case 4:
			m.Works(p)
		case 5:
			if m.Len(now) > MaxPaths {
				t.Fatal("too many")
			}
		}
	}
	check(t, m)
}
