// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"smcr/nl"

	"github.com/google/go-cmp/cmp"
)

func sampleState() *State {
	on, off := true, false
	return &State{
		File: "abc", Namespace: 4026531840,
		Base: &Config{PNETs: []nl.PNET{{ID: "A", NetDev: "eth0"}, {ID: "B", NetDev: "eth1"}}, UEIDs: []string{"OLD"}, HSLimitation: &off,
			Programs: []Program{{Cgroup: "/a", Connect: true, Accept: true}, {Cgroup: "/b", Connect: true, Accept: true}}},
		Now: &Config{PNETs: []nl.PNET{{ID: "A", NetDev: "eth0"}, {ID: "C", IBDev: "soft-eth1", IBPort: 1}}, UEIDs: []string{"NEW"}, HSLimitation: &on,
			Programs: []Program{{Cgroup: "/b", Accept: true, Always: true, UID: 1000}, {Cgroup: "/c", Connect: true, Accept: true}}},
	}
}

// TestStateRoundTrip checks that ParseState returns the state that was written, and
// refuses a truncated one.
func TestStateRoundTrip(t *testing.T) {
	for name, s := range map[string]*State{
		"changes": sampleState(),
		"empty":   {Base: &Config{}, Now: &Config{PNETs: []nl.PNET{}, UEIDs: []string{}}},
	} {
		b, err := s.AppendYAML(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseState(b)
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, b)
		}
		if diff := cmp.Diff(s, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		// The last byte is only the end of a line.
		for n := range len(b) - 1 {
			if s, err := ParseState(b[:n]); !errors.Is(err, ErrInvalid) {
				t.Fatalf("%s: the first %d of %d bytes: %v, %v", name, n, len(b), s, err)
			}
		}
	}
	for _, text := range []string{
		"base: {ueids: [lower]}\nnow: {}\nwhole: true\n", "base: {}\nnow: {bogus: 1}\nwhole: true\n", "bogus: 1\nwhole: true\n",
		"base: {}\nnow: [1]\nwhole: true\n", "\x00",
	} {
		if s, err := ParseState([]byte(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
}

// TestStateTooLarge: what ParseState would not read is not written.
func TestStateTooLarge(t *testing.T) {
	s := sampleState()
	for i := range 300 {
		s.Now.Programs = append(s.Now.Programs, Program{Cgroup: fmt.Sprintf("/%d%s", i, strings.Repeat("/a", 2000)), Connect: true})
	}
	if b, err := s.AppendYAML(nil); err == nil {
		t.Errorf("%d bytes", len(b))
	}
}

// TestStateOn checks how changes apply to another configuration file.
func TestStateOn(t *testing.T) {
	s := sampleState()
	if got := s.On(s.Base); !cmp.Equal(got, s.Now) {
		t.Errorf("on the base: %s", cmp.Diff(s.Now, got))
	}
	off, on := false, true
	// A device of the file that was missing before exists now.
	live := &Config{PNETs: []nl.PNET{{ID: "A", NetDev: "eth0"}, {ID: "B", NetDev: "eth1"}, {ID: "D", NetDev: "eth2"}}, UEIDs: []string{"OLD"}, HSLimitation: &off, Programs: s.Base.Programs}
	want := &Config{
		PNETs: []nl.PNET{{ID: "A", NetDev: "eth0"}, {ID: "D", NetDev: "eth2"}, {ID: "C", IBDev: "soft-eth1", IBPort: 1}},
		UEIDs: []string{"NEW"}, HSLimitation: &on, Programs: s.Now.Programs,
	}
	if diff := cmp.Diff(want, s.On(live)); diff != "" {
		t.Errorf("on more than the base (-want +got):\n%s", diff)
	}
	// If the file and a command give a pnetid to the same device, that of the command
	// applies.
	live.PNETs = []nl.PNET{{ID: "X", IBDev: "soft-eth1", IBPort: 2}}
	if got := s.On(live).PNETs; !cmp.Equal(got, s.Now.PNETs[1:]) {
		t.Errorf("one device, two pnetids: %v", got)
	}
	// There are no more enterprise IDs than a stack can hold.
	live.UEIDs = []string{"1", "2", "3", "4"}
	if got := s.On(live).UEIDs; len(got) != nl.MaxUEIDs {
		t.Errorf("enterprise IDs: %v", got)
	}
	if !s.Changed() || (&State{Base: s.Base, Now: s.Base}).Changed() {
		t.Error("Changed does not tell a change")
	}
}
