// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestTestLink: a link without traffic is tested, and fails if there is no answer.
func TestTestLink(t *testing.T) {
	r := newRig(t, smc.Server, nil)
	r.open()
	r.wait(29 * time.Second)
	r.expect("")
	r.give(1, 0) // a sign of life
	r.wait(2 * time.Second)
	r.expect("")
	r.wait(28 * time.Second)
	r.expect("test-link")
	r.recv(r.link, wire.TestLink{Reply: true, UserData: r.link.testData})
	r.wait(29 * time.Second)
	r.expect("")
	r.wait(2 * time.Second)
	r.expect("test-link")
	r.wait(2 * time.Second)
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) || len(r.close) != 1 || !errors.Is(r.close[0], conn.ErrReset) {
		t.Errorf("dead %v, closed %v", r.dead, r.close)
	}

	r = newRig(t, smc.Client, nil)
	r.open()
	r.recv(r.link, wire.TestLink{UserData: [16]byte{1, 2, 3}})
	r.expect("re:test-link")
	if m, _ := wire.ParseTestLink(r.last); m.UserData != [16]byte{1, 2, 3} {
		t.Errorf("user data %v", m.UserData)
	}
	r.recv(r.link, wire.TestLink{Reply: true}) // nobody asked
	r.wait(31 * time.Second)
	r.expect("test-link")
	r.recv(r.link, wire.TestLink{Reply: true})
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrProtocol) {
		t.Errorf("wrong answer: dead %v", r.dead)
	}
}

// TestTestLinkBusy: an answer to TEST LINK may be late as long as something else
// gets through.
func TestTestLinkBusy(t *testing.T) {
	busy := DefaultTimers(smc.Server).TestLinkBusy
	for _, tt := range []struct {
		name string
		sign func(r *rig)
		ends time.Duration // after the request, if no answer comes
	}{
		{"nothing", func(*rig) {}, 2 * time.Second},
		{"acknowledgements", func(r *rig) { r.send(1); r.done() }, busy},
		{"data", func(r *rig) { r.give(1, 0) }, busy},
	} {
		for _, answered := range []bool{false, true} {
			r := newRig(t, smc.Server, noTest)
			r.open()
			r.c.SetKeepAlive(r.s.now, time.Minute)
			r.wait(time.Minute)
			r.expect("test-link")
			asked := r.s.now
			for len(r.dead) == 0 && r.s.now.Sub(asked) < busy-time.Second {
				tt.sign(r)
				r.wait(time.Second)
			}
			if tt.ends < busy {
				if took := r.s.now.Sub(asked); len(r.dead) != 1 || took != tt.ends {
					t.Errorf("%s: dead %v after %v, want %v", tt.name, r.dead, took, tt.ends)
				}
				continue
			}
			if len(r.dead) > 0 {
				t.Fatalf("%s: dead %v after %v", tt.name, r.dead, r.s.now.Sub(asked))
			}
			if answered {
				r.recv(r.link, wire.TestLink{Reply: true, UserData: r.link.testData})
			}
			tt.sign(r)
			r.wait(time.Second)
			if dead := len(r.dead) == 1 && errors.Is(r.dead[0], ErrTimeout); dead == answered {
				t.Errorf("%s, answered %v: dead %v after %v", tt.name, answered, r.dead, busy)
			}
		}
	}
}

// TestIdle: a group without connections ends after a while, by the server.
func TestIdle(t *testing.T) {
	s := started(t, 1, 1, nil)
	for _, h := range s.hosts {
		for _, p := range h.apps {
			p.c.Close(s.now)
			h.drain()
		}
	}
	s.pass(599 * time.Second)
	if s.hosts[0].gone || s.hosts[1].gone {
		t.Fatal("too early")
	}
	if !slices.Contains(s.trace, "s1:test-link") && !slices.Contains(s.trace, "c1:test-link") {
		t.Error("no TEST LINK")
	}
	s.trace = nil
	s.pass(2 * time.Second)
	s.flow("s1:delete-link-all")
	if !errors.Is(s.hosts[smc.Server].deadE, ErrIdle) || !errors.Is(s.hosts[smc.Client].deadE, ErrTerminated) {
		t.Errorf("dead: %v, %v", s.hosts[smc.Server].deadE, s.hosts[smc.Client].deadE)
	}
	s.finish()
}

// TestTerminate: from either side, all connections end at once.
func TestTerminate(t *testing.T) {
	for role, want := range map[smc.Role]string{
		smc.Server: "s1:delete-link-all",
		smc.Client: "c1:delete-link-all s1:delete-link-all",
	} {
		s := started(t, 1, 1, noTest)
		s.trace = nil
		h := s.hosts[role]
		h.g.Terminate(s.now, wire.DeleteLinkOperator)
		h.g.Terminate(s.now, wire.DeleteLinkOperator)
		if h.g.CanAccept() {
			t.Error("takes connections")
		}
		if _, err := h.g.NewConn(s.now, 0, 1); !errors.Is(err, ErrGroupDead) {
			t.Errorf("NewConn: %v", err)
		}
		h.drain()
		s.runUntilIdle()
		s.flow(want)
		for r, h := range s.hosts {
			if !h.gone {
				t.Errorf("%s is not gone", smc.Role(r))
			}
			for _, p := range h.apps {
				want := conn.ErrReset
				if h.role == role {
					want = conn.ErrAborted
				}
				if !errors.Is(p.closeErr, want) {
					t.Errorf("%s: connection ended with %v", h.role, p.closeErr)
				}
			}
		}
		s.finish()
	}
	// A peer that does not take the message is left.
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.g.Terminate(r.s.now, wire.DeleteLinkOperator)
	r.expect("delete-link-all")
	r.wait(3 * time.Second)
	if len(r.dead) != 1 {
		t.Error("waits for ever")
	}
}

// TestViolations: messages that no sound peer sends.
func TestViolations(t *testing.T) {
	tests := []struct {
		name string
		msg  []byte
		dead bool
	}{
		{"unknown opcode", append([]byte{0x33, 44, 0, 0}, make([]byte, 40)...), true},
		{"optional opcode", append([]byte{0x8F, 44, 0, 0}, make([]byte, 40)...), false},
		{"optional opcode, other length", append([]byte{0xBF, 0, 0, 99}, make([]byte, 40)...), false},
		{"short", make([]byte, 10), true},
		{"empty", nil, true},
		{"wrong length", append([]byte{7, 43, 0, 0}, make([]byte, 40)...), true},
		{"too many RKeys", append([]byte{9, 44, 0, 0, 9}, make([]byte, 39)...), true},
		{"CDC of wrong length", append([]byte{0xFE, 43, 0, 0}, make([]byte, 40)...), true},
	}
	for _, tt := range tests {
		r := newRig(t, smc.Server, noTest)
		r.open()
		r.g.Received(r.s.now, r.link, tt.msg)
		got := r.sent()
		if want := map[bool]string{true: "delete-link-all", false: ""}[tt.dead]; got != want {
			t.Errorf("%s: sent %q", tt.name, got)
		}
		if tt.dead {
			if m, _ := wire.ParseDeleteLink(r.last); m.Reason != wire.DeleteLinkProtocolViolation || m.Orderly {
				t.Errorf("%s: %+v", tt.name, m)
			}
			r.done()
			if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrProtocol) || len(r.close) != 1 {
				t.Errorf("%s: dead %v, closed %v", tt.name, r.dead, r.close)
			}
		}
	}
}
