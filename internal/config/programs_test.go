// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
)

func TestParsePrograms(t *testing.T) {
	for in, want := range map[string][]Program{
		"seid: true":                       nil,
		"programs: []":                     {},
		"programs: [{cgroup: /a.slice/b}]": {{Cgroup: "/a.slice/b", Connect: true, Accept: true}},
		"programs: [{cgroup: /}]":          {{Cgroup: "/", Connect: true, Accept: true}},
		`programs:
  - {cgroup: /system.slice/nginx.service, connect: true, accept: true, adapt: true}
  - cgroup: /c
    accept: false
  - cgroup: /a
    connect: false
    adapt: false
  - {cgroup: /smcr-run-1-x/below}
`: {
			{Cgroup: "/system.slice/nginx.service", Connect: true, Accept: true},
			{Cgroup: "/c", Connect: true},
			{Cgroup: "/a", Accept: true, Always: true},
			{Cgroup: "/smcr-run-1-x/below", Connect: true, Accept: true},
		},
	} {
		c, err := Parse([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, c.Programs); diff != "" {
			t.Errorf("%s: -want +got:\n%s", in, diff)
		}
	}
}

func TestParseProgramsErrors(t *testing.T) {
	many := "programs:\n"
	for i := range MaxPrograms + 1 {
		many += fmt.Sprintf("  - cgroup: /%d\n", i)
	}
	const path = "write its path from the top of the cgroups, for example /system.slice/nginx.service"
	for in, want := range map[string][]string{
		"programs:\n":            {"line 1: programs has no value: remove the key, or write [] for an empty list"},
		"programs: {cgroup: /a}": {"line 1: programs must be a list, for example [{cgroup: /system.slice/nginx.service}]"},
		"programs: [/a]":         {"line 1: each entry of programs must consist of keys and values, for example {cgroup: /system.slice/nginx.service}"},
		"program: []":            {`line 1: unknown key "program": did you mean "programs"?`},
		`programs:
  - unit: nginx.service
  - cgroup: /a
    no-adapt: true
  - cgroup: /b
    conect: true
`: {
			`line 2: unknown key "unit": write the path of its cgroup, for example cgroup: /system.slice/nginx.service`,
			`line 4: unknown key "no-adapt": write adapt: false`,
			`line 6: unknown key "conect": did you mean "connect"?`,
		},
		"programs: [{cgroup: [a]}, {cgroup: /a, connect: 1}, {cgroup: /a, accept: /a, adapt: never}]": {
			"line 1: cgroup must be a path, for example /system.slice/nginx.service",
			"line 1: connect must be true or false",
			"line 1: accept must be true or false",
			"line 1: adapt must be true or false",
		},
		`programs:
  - {}
  - {cgroup: }
  - cgroup: system.slice/nginx.service
  - cgroup: /a/
  - cgroup: /../a
  - cgroup: ..
  - cgroup: /sys/fs/cgroup/system.slice/nginx.service
  - cgroup: /sys/fs/cgroup
  - cgroup: "/a\0"
  - cgroup: /system.slice/smcr-run-4026531840-abc
  - {cgroup: /b, connect: false, accept: false}
  - cgroup: /b
  - cgroup: /b
    accept: false
`: {
			"line 2: the entry of programs has no cgroup",
			"line 3: the entry of programs has no cgroup",
			`line 4: cgroup "system.slice/nginx.service": ` + path + `: did you mean "/system.slice/nginx.service"?`,
			`line 5: cgroup "/a/": ` + path + `: did you mean "/a"?`,
			`line 6: cgroup "/../a": ` + path + `: did you mean "/a"?`,
			`line 7: cgroup "..": ` + path,
			`line 8: cgroup "/sys/fs/cgroup/system.slice/nginx.service": ` + path + `: did you mean "/system.slice/nginx.service"?`,
			`line 9: cgroup "/sys/fs/cgroup": ` + path,
			`line 10: cgroup "/a\x00": ` + path,
			`line 11: cgroup "/system.slice/smcr-run-4026531840-abc": the name is one of 'smcr run', which attaches it itself: remove the entry`,
			`line 12: cgroup "/b": connect and accept are both false: remove one of them, or the entry`,
			`line 14: cgroup "/b" is already listed above`,
		},
		many: {"line 2050: 2049 entries of programs: a stack holds at most 2048"},
	} {
		c, err := Parse([]byte(in))
		var errs Errors
		if c != nil || !errors.As(err, &errs) {
			t.Errorf("%.200s: %v, %v", in, c, err)
			continue
		}
		var got []string
		for _, e := range errs {
			got = append(got, e.Where())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%.200s: -want +got:\n%s", in, diff)
		}
	}
}

// TestProgramsOfKernel: a stack that takes no connections of cgroups has the other sections, and one sentence says why.
func TestProgramsOfKernel(t *testing.T) {
	fake := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 2}})
	kernel := struct{ nl.Control }{fake} // no nl.Attacher
	if c, err := Export(t.Context(), kernel); err != nil || c.Programs != nil {
		t.Errorf("%+v, %v", c, err)
	}
	for in, ignored := range map[string][]string{
		"ueids: [A]\nprograms: [{cgroup: /a}, {cgroup: /b}]": {noPrograms},
		"ueids: [A]\nprograms: []":                           nil,
	} {
		c := parse(t, in)
		plan, err := c.Plan(t.Context(), kernel)
		if err == nil {
			err = plan.Check(t.Context(), kernel, Host{})
		}
		if err != nil || len(plan.Changes) != 1 || !slices.Equal(plan.Ignored, ignored) {
			t.Errorf("%s: %+v, ignored %q, %v", in, plan.Changes, plan.Ignored, err)
		}
		usable, left, err := c.Usable(t.Context(), kernel, nil)
		if err != nil || len(usable.Programs) != 0 || len(usable.UEIDs) != 1 || len(left) != len(ignored) || len(left) == 1 && left[0].Text != ignored[0] {
			t.Errorf("%s: %+v, left out %v, %v", in, usable, left, err)
		}
	}
}

// TestRunsAreNoConfiguration: what 'smcr run' has attached is not exported, and is not removed.
func TestRunsAreNoConfiguration(t *testing.T) {
	fake := nltest.NewFake(nltest.State{Attachments: []nl.Attachment{
		{Path: "/z", UID: 7, Connect: true}, {Path: "/smcr-run-1-x", Run: true, Connect: true, Accept: true}, {Path: "/a", Accept: true, Always: true},
	}})
	c, err := Export(t.Context(), fake)
	want := []Program{{Cgroup: "/a", Accept: true, Always: true}, {Cgroup: "/z", Connect: true, UID: 7}}
	if err != nil || !slices.Equal(c.Programs, want) {
		t.Fatalf("%+v, %v", c.Programs, err)
	}
	text, err := (&Config{Programs: c.Programs}).AppendYAML(nil)
	if got, want := string(text), "programs:\n  - cgroup: /a\n    connect: false\n    adapt: false\n  - cgroup: /z\n    accept: false\n"; got != want || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if changes, err := (&Config{Programs: []Program{}}).Apply(t.Context(), fake); err != nil || len(changes) != 2 {
		t.Errorf("%v, %v", changes, err)
	}
	if left, err := fake.Attachments(t.Context()); err != nil || len(left) != 1 || !left[0].Run {
		t.Errorf("%+v, %v", left, err)
	}
}

// TestUndoKeepsUsers: after a plan that failed, everything is attached as it was, by whom it was.
func TestUndoKeepsUsers(t *testing.T) {
	s := newStack(t, &Config{Programs: []Program{{Cgroup: "/a", Connect: true, Accept: true, UID: 7}, {Cgroup: "/b", Connect: true, UID: 8}}})
	before := state(t, s)
	s.failAt = 3
	var failed *ApplyError
	_, err := parse(t, "programs: [{cgroup: /c}, {cgroup: /b}, {cgroup: /d}]").Apply(t.Context(), s)
	if !errors.As(err, &failed) || failed.Undo != nil || failed.Step != "attach cgroup /b" || !strings.Contains(err.Error(), "nothing was changed") {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, state(t, s)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// TestAttached: beside what another file lists, there is what commands have attached beside the former file.
func TestAttached(t *testing.T) {
	p := func(path string, uid uint32) Program {
		return Program{Cgroup: path, Connect: true, Accept: true, UID: uid}
	}
	less := Program{Cgroup: "/changed", Accept: true}
	s := State{
		Base: &Config{Programs: []Program{p("/stays", 0), p("/gone", 0), p("/detached", 0), p("/changed", 0)}},
		Now:  &Config{Programs: []Program{p("/stays", 0), p("/gone", 0), less, p("/hand", 7), p("/both", 7)}},
	}
	file := []Program{p("/stays", 0), p("/detached", 0), p("/changed", 0), p("/new", 0), p("/both", 0)}
	if diff := cmp.Diff(append(slices.Clone(file), p("/hand", 7)), s.Attached(file)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A file that is the same has been read by another stack, as another user: the UID makes no difference.
	on := s.On(&Config{Programs: []Program{p("/stays", 5), p("/gone", 5), p("/detached", 5), p("/changed", 5)}}).Programs
	if diff := cmp.Diff([]Program{p("/stays", 5), p("/gone", 5), less, p("/hand", 7), p("/both", 7)}, on); diff != "" {
		t.Errorf("the same file: -want +got:\n%s", diff)
	}
	// Its programs alone are others now.
	file = []Program{less, p("/both", 5), p("/new", 5), p("/stays", 5), {Cgroup: "/gone", Connect: true}}
	if diff := cmp.Diff(append(slices.Clone(file), p("/hand", 7)), s.On(&Config{Programs: file}).Programs); diff != "" {
		t.Errorf("other programs: -want +got:\n%s", diff)
	}
}
