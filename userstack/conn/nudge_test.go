// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestNudge: while a lost link keeps the peer's messages, requests for its cursor make it send
// what it holds back: soon after the last message of either side, then less often, one at a
// time, and none any more when the link is deleted.
func TestNudge(t *testing.T) {
	r := newRig(t, settings{})
	r.wait(time.Hour)
	r.expect("")
	r.c.p.Nudge(true)
	r.wait(firstNudge - 1)
	r.expect("")
	r.wait(1)
	r.expect("cdc+R")
	r.wait(time.Minute)
	r.expect("") // the first one is not delivered
	r.done()
	count := func(d time.Duration) int {
		n := 0
		for end := r.now.Add(d); r.now.Before(end); r.wait(time.Millisecond) {
			if s := r.sent(); s != "" {
				n += strings.Count(s, "cdc+R")
				if s != "cdc+R" {
					t.Fatalf("sent %q", s)
				}
			}
			r.done()
		}
		return n
	}
	count(2 * time.Second) // until they are rare
	if n := count(10 * lastNudge); n != 10 {
		t.Errorf("%d nudges in ten times %s", n, lastNudge)
	}
	for what, do := range map[string]func(){
		"data sent":     func() { r.send(100); r.expect("cdc") },
		"data received": func() { r.give(100, 0) },
	} {
		count(2 * time.Second)
		do()
		r.acts = nil
		r.done()
		if n := count(8 * firstNudge); n != 3 {
			t.Errorf("%s: %d nudges in the time after it, want 3", what, n)
		}
	}
	for what, do := range map[string]func(){
		"a message without data": func() { r.give(0, 0) },
		"another link was lost":  func() { r.c.p.Nudge(true) },
	} {
		count(2 * time.Second)
		do()
		if n := count(8 * firstNudge); n > 1 {
			t.Errorf("%s: %d nudges in the time after it", what, n)
		}
	}
	count(2 * time.Second)
	r.give(1, 0)
	if n := count(8 * firstNudge); n != 3 {
		t.Errorf("one byte received: %d nudges in the time after it, want 3", n)
	}
	r.c.p.Nudge(false)
	if n := count(time.Minute); n != 0 {
		t.Errorf("%d nudges after the deletion", n)
	}
}

// TestNudgeEnds: a connection that has said its last word, or has ended, does not nudge, nor
// does one that is not established.
func TestNudgeEnds(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"closed":  func(r *rig) { r.c.Close(r.now) },
		"aborted": func(r *rig) { r.c.Abort(r.now) },
		"reset":   func(r *rig) { r.flag(wire.ConnAbnormalClose) },
	} {
		r := newRig(t, settings{})
		r.c.p.Nudge(true)
		end(r)
		r.done()
		r.acts = nil
		r.wait(5 * time.Second)
		if s := r.sent(); s != "" {
			t.Errorf("%s: sent %q", name, s)
		}
		if r.state() == smc.StateClosed {
			r.c.p.Nudge(false)
			r.c.p.Nudge(true)
			if at, ok := r.c.p.Deadline(); ok {
				t.Errorf("%s: a timer runs to %s", name, at)
			}
		}
	}
	var c Conn
	c.p.Nudge(true)
	if c.p.out.nudge.on {
		t.Error("a connection nudges that is not established")
	}
}

// TestNudgeUrgent: an answer to a nudge would be taken for one about an urgent byte.
func TestNudgeUrgent(t *testing.T) {
	r := newRig(t, settings{stopsAtUrgent: true})
	r.urge(10)
	r.done()
	r.got(10)
	r.done()
	r.acts = nil
	r.c.p.Nudge(true)
	r.wait(time.Second)
	r.expect("")
}
