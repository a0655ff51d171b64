// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"testing"
)

func TestEdit(t *testing.T) {
	const x = "/system.slice/x.service"
	for _, test := range []struct {
		name, without, with string
	}{
		{"empty file", "", "programs:\n  - cgroup: " + x + "\n"},
		{"a comment alone", "# mine\n", "# mine\nprograms:\n  - cgroup: " + x + "\n"},
		{"other sections", "# mine\nueids: [A] # one\n", "# mine\nueids: [A] # one\nprograms:\n  - cgroup: " + x + "\n"},
		{
			"others listed", "programs: # all\n- cgroup: /a\n  adapt: false\n\n# more\nueids: [A]\n",
			"programs: # all\n- cgroup: /a\n  adapt: false\n- cgroup: " + x + "\n\n# more\nueids: [A]\n",
		},
		{
			"indented", "seid: true\nprograms:\n    # one\n    - {cgroup: /a}\n    # two\n    - cgroup: /b # b\n",
			"seid: true\nprograms:\n    # one\n    - {cgroup: /a}\n    # two\n    - cgroup: /b # b\n    - cgroup: " + x + "\n",
		},
	} {
		got, err := AddProgram([]byte(test.without), x)
		if err != nil || string(got) != test.with {
			t.Errorf("%s: %v\n%s\nwant\n%s", test.name, err, got, test.with)
		}
		if again, err := AddProgram(got, x); err != nil || string(again) != string(got) {
			t.Errorf("%s: again: %v\n%s", test.name, err, again)
		}
		if got, err = RemoveProgram(got, x); err != nil || string(got) != test.without {
			t.Errorf("%s: removed: %v\n%s\nwant\n%s", test.name, err, got, test.without)
		}
		if got, err = RemoveProgram(got, x); err != nil || string(got) != test.without {
			t.Errorf("%s: removed again: %v\n%s", test.name, err, got)
		}
	}
	// The last line has no end.
	if got, err := AddProgram([]byte("programs:\n  - cgroup: /a"), x); err != nil || string(got) != "programs:\n  - cgroup: /a\n  - cgroup: "+x+"\n" {
		t.Errorf("%v\n%s", err, got)
	}
	// A path that YAML would take for something else.
	if got, err := AddProgram(nil, "/a: b #c\n"); err != nil {
		t.Error(err)
	} else if c, err := Parse(got); err != nil || len(c.Programs) != 1 || c.Programs[0].Cgroup != "/a: b #c\n" {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestEditByHand: what only a person can change is left alone.
func TestEditByHand(t *testing.T) {
	for _, test := range []struct {
		text string
		want error
	}{
		{"programs: [{cgroup: /a}]\n", ErrByHand},
		{"programs: []\n", ErrByHand},
		{"{seid: true, programs: [{cgroup: /a}]}\n", ErrByHand},
		{"{seid: true}\n", ErrByHand},
		{"seid: true\n...\n", ErrByHand},
		{"programs:\n  -\n    cgroup: /a\n", ErrByHand},
		{"programs:\n  - cgroup: >-\n      /a\n", ErrByHand},
		{"programs: 7\n", ErrInvalid},
		{"nothing: 7\n", ErrInvalid},
	} {
		got, err := AddProgram([]byte(test.text), "/x")
		if err == nil { // the other way around
			got, err = RemoveProgram([]byte(test.text), "/a")
		}
		if !errors.Is(err, test.want) || got != nil {
			t.Errorf("%q: %v, %q; want %v", test.text, err, got, test.want)
		}
	}
	if _, err := AddProgram(nil, "x"); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// FuzzEdit: nothing but the entry is changed, in any file.
func FuzzEdit(f *testing.F) {
	f.Add([]byte("programs: # all\n- cgroup: /a\n  adapt: false\n\n# more\nueids: [A]\n"), "/x")
	f.Add([]byte("programs: &a\n  - cgroup: |\n     /a\n"), "/a\n")
	f.Add([]byte("? programs\n: - cgroup: /a\n"), "/a")
	f.Fuzz(func(t *testing.T, b []byte, cgroup string) {
		before, err := Parse(b)
		if err != nil {
			return
		}
		if _, err := RemoveProgram(b, cgroup); err != nil && !errors.Is(err, ErrByHand) {
			t.Error(err)
		}
		with, err := AddProgram(b, cgroup)
		if err != nil {
			return
		}
		c, err := Parse(with)
		if err != nil || !hasProgram(c.Programs, cgroup) || len(c.Programs)-len(before.Programs) > 1 {
			t.Errorf("%v\n%s", err, with)
		}
	})
}
