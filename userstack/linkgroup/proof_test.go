// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// proving is a configuration with a test of idle links.
func proving(c *Config) {
	noTest(c)
	c.Timers.Fresh, c.Timers.ProofWait = 200*time.Millisecond, 700*time.Millisecond
}

// readiness returns the outcomes of c that are queued: one for each ActConnReady.
func (r *rig) readiness(c *Conn) (out []error) {
	r.take()
	for _, a := range r.acts {
		if a.Kind == ActConnReady && a.Conn == c {
			out = append(out, a.Err)
		}
	}
	return out
}

// newUnsure makes a connection on the open group.
func (r *rig) newUnsure(owner uint32) *Conn {
	r.t.Helper()
	c, err := r.g.NewConnOf(r.s.now, owner, 0, 4096)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// TestProve: the rows of the table in proof.go.
func TestProve(t *testing.T) {
	const wait = 700 * time.Millisecond
	answer := func(r *rig) {
		m, err := wire.ParseTestLink(r.last)
		if err != nil {
			r.t.Fatal(err)
		}
		m.Reply = true
		r.recv(r.link, m)
	}
	for _, tt := range []struct {
		name  string
		idle  time.Duration // since the last sign of the peer
		owner uint32        // another owner needs an RMB that the peer does not know
		sent  string        // at once
		then  func(r *rig)
		ready []error
		takes bool // the group takes connections after it
	}{
		{"fresh", 100 * time.Millisecond, 0, "", func(*rig) {}, []error{nil}, true},
		{"stale, and nothing happens", time.Second, 0, "test-link", func(*rig) {}, nil, true},
		{"stale, acknowledged", time.Second, 0, "test-link", (*rig).done, []error{nil}, true},
		{"stale, answered", time.Second, 0, "test-link", answer, []error{nil}, true},
		{"stale, just before the end", time.Second, 0, "test-link", func(r *rig) { r.wait(wait - 1); r.done() }, []error{nil}, true},
		{"stale, silent", time.Second, 0, "test-link", func(r *rig) { r.wait(wait) }, []error{ErrNoSign}, false},
		{"stale, silent, answered later", time.Second, 0, "test-link", func(r *rig) { r.wait(wait); answer(r) }, []error{ErrNoSign}, true},
		{"fresh, new RMB, silent", 100 * time.Millisecond, 7, "confirm-rkey(0)", func(r *rig) { r.wait(wait) }, []error{ErrNoSign}, false},
		{"fresh, new RMB, acknowledged, no answer yet", 100 * time.Millisecond, 7, "confirm-rkey(0)", func(r *rig) { r.done(); r.wait(2 * wait) }, nil, true},
		{"fresh, new RMB, answered", 100 * time.Millisecond, 7, "confirm-rkey(0)", func(r *rig) {
			r.done()
			m, _ := wire.ParseConfirmRKey(r.last)
			m.Reply = true
			r.recv(r.link, m)
		}, []error{nil}, true},
		{"stale, new RMB, silent", time.Second, 7, "test-link confirm-rkey(0)", func(r *rig) { r.wait(wait) }, []error{ErrNoSign}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, role := range []smc.Role{smc.Server, smc.Client} {
				r := newRig(t, role, proving)
				r.open()
				r.acts = nil
				r.wait(tt.idle)
				c := r.newUnsure(tt.owner)
				if got := r.readiness(c); tt.sent == "" && !slices.Equal(got, tt.ready) || tt.sent != "" && len(got) != 0 {
					t.Errorf("%s: ready at once: %v", role, got)
				}
				acts := r.acts
				if got := r.sent(); got != tt.sent {
					t.Errorf("%s: sent %q, want %q", role, got, tt.sent)
				}
				r.acts = acts
				tt.then(r)
				got := r.readiness(c)
				if !slices.EqualFunc(got, tt.ready, errors.Is) {
					t.Errorf("%s: ready %v, want %v", role, got, tt.ready)
				}
				if r.g.CanAccept() != tt.takes {
					t.Errorf("%s: takes connections: %v", role, !tt.takes)
				}
				if err := r.g.Check(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestProveEnds: connections that wait for a sign end with the group, or without it.
func TestProveEnds(t *testing.T) {
	r := newRig(t, smc.Server, proving)
	r.open()
	r.wait(time.Second)
	c, left := r.newUnsure(0), r.newUnsure(0)
	left.Cancel(r.s.now)
	r.g.LinkFailed(r.s.now, r.link, errAny)
	if got := r.readiness(c); len(got) != 1 || got[0] == nil {
		t.Errorf("ready %v", got)
	}
	if got := r.readiness(left); len(got) != 0 {
		t.Errorf("a connection that was canceled is ready: %v", got)
	}
	r.wait(time.Minute)
	if len(r.dead) != 1 {
		t.Errorf("dead %v", r.dead)
	}
}

// TestProveOther: a connection whose link has failed, and that was not moved then, proves another
// link. It is ready without one only if there is none.
func TestProveOther(t *testing.T) {
	for _, other := range []bool{true, false} {
		r := newRig(t, smc.Server, proving)
		if other {
			r.two(nil)
		} else {
			r.open()
		}
		r.wait(time.Second)
		c := r.newUnsure(0)
		was := c.Link()
		was.closeQP()
		r.wait(700 * time.Millisecond)
		want := []error{}
		if !other {
			want = []error{ErrNoLink}
		}
		if got := r.readiness(c); !slices.EqualFunc(got, want, errors.Is) {
			t.Errorf("ready %v, want %v", got, want)
		}
		if (c.Link() != was) != other {
			t.Errorf("another link: %v, want %v", c.Link() != was, other)
		}
	}
}

// TestProvePath: with ProvePath, a full packet of zeros goes to the end of the peer's element
// before the reply to CONFIRM LINK, and before CONFIRM LINK if the peer is a stack of this module.
func TestProvePath(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for _, ours := range []bool{true, false} {
			testProvePath(t, role, ours)
		}
	}
}

func testProvePath(t *testing.T, role smc.Role, ours bool) {
	params, want := peerRMB, []ActionKind{ActSend}
	if ours {
		params.Link.UDPPort = 50000
	}
	if ours || role == smc.Client {
		want = []ActionKind{ActWrite, ActSend}
	}
	r := newRig(t, role, func(c *Config) { noTest(c); c.ProvePath = true })
	r.beginWith(params)
	if role == smc.Client {
		r.recv(r.link, r.confirmLink(false, r.link))
	}
	r.take()
	var kinds []ActionKind
	for _, a := range r.acts {
		if a.Kind != ActWrite && a.Kind != ActSend {
			continue
		}
		kinds = append(kinds, a.Kind)
		if a.Kind != ActWrite {
			continue
		}
		end := peerRMB.VAddr + uint64(peerRMB.Index)*16<<10
		if a.Len != peerEnd.MTU.Bytes() || a.RemoteAddr+uint64(a.Len) != end || a.RKey != peerRMB.RKey || a.Token == 0 {
			t.Errorf("%s: %d bytes to %#x under %s, token %d", role, a.Len, a.RemoteAddr, a.RKey, a.Token)
		}
		if p := a.Chunk.Data.(RMBPart); p.Handle != r.c.rmb.handle || p.Off != r.c.elem*r.c.rmb.size {
			t.Errorf("%s: from %+v", role, p)
		}
		for _, b := range a.Chunk.Mem[a.Off:][:a.Len] {
			if b != 0 {
				t.Fatalf("%s: not zero", role)
			}
		}
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("%s: %v", role, kinds)
	}
}
