// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"
)

// attacher is keepOpen for a stack that takes the connections of cgroups.
type attacher struct{ *nl.Client }

func (attacher) Close() error { return nil }

// attaches has the stack of the world take the connections of cgroups.
func (w *world) attaches() {
	b := w.stacks[0]
	w.stacks = nl.Multi{{Name: b.Name, Control: attacher{b.Control.(keepOpen).Control.(*nl.Client)}}}
}

// TestExportApplyPrograms: attached cgroups are part of the configuration of a stack that takes connections of cgroups. Another stack
// has the rest of the configuration, and the user learns why.
func TestExportApplyPrograms(t *testing.T) {
	w, fake := newWorld(t)
	without := w.stacks[0]
	w.attaches()
	const file = `programs:
  - cgroup: /system.slice/nginx.service
  - cgroup: /user.slice
    accept: false
    adapt: false
`
	const rest = "pnetids: []\nueids:\n  - SMCV2-EXAMPLE-UEID\nhandshake_limitation: false\n"
	const added = "+ program /system.slice/nginx.service\n+ program /user.slice connect no-adapt\n"
	for _, step := range []struct{ file, args, out string }{
		{"", "export", rest + "programs: []\n"},
		{file, "apply -n -", added},
		{file, "apply -", added},
		{file, "apply -", "nothing to change\n"},
		{"", "export", rest + file},
		{"ueids: [A.B]", "apply -n -", "- ueid SMCV2-EXAMPLE-UEID\n+ ueid A.B\n"},
		{"programs: [{cgroup: /user.slice}]", "apply -o json -", `[
  {
    "action": "remove",
    "object": "program",
    "cgroup": "/system.slice/nginx.service",
    "connect": true,
    "accept": true,
    "adapt": true
  },
  {
    "action": "set",
    "object": "program",
    "cgroup": "/user.slice",
    "connect": true,
    "accept": true,
    "adapt": true
  }
]
`},
	} {
		if status, out, errOut := w.runInput(step.file, strings.Fields(step.args)...); status != 0 || out != step.out || errOut != "" {
			t.Errorf("smcr %s: %d, %s, %s", step.args, status, out, errOut)
		}
	}
	if all, err := fake.Attachments(t.Context()); err != nil || len(all) != 1 || all[0].UID != uint32(os.Getuid()) {
		t.Errorf("%+v, %v", all, err)
	}
	w.stacks = nl.Multi{without}
	const says = "smcr: ignored: programs: this stack takes no connections of cgroups: 'smcr serve' does\n"
	for _, args := range []string{"apply -n -", "apply -"} {
		status, out, errOut := w.runInput("handshake_limitation: true\n"+file, strings.Fields(args)...)
		if status != 0 || out != "= handshake_limitation true\n" || errOut != says {
			t.Errorf("smcr %s: %d, %s, %s", args, status, out, errOut)
		}
	}
	if status, out, errOut := w.run("export"); status != 0 || strings.Contains(out, "programs") || errOut != "" {
		t.Errorf("%d, %s, %s", status, out, errOut)
	}
}

// TestAttachVolatile: a user learns that a change will not outlast the stack.
func TestAttachVolatile(t *testing.T) {
	for name, says := range map[string]string{"": "", "no space left": "smcr: done, but the change lasts only as long as the stack (no space left): " +
		"to keep it, write the output of 'smcr export' to the configuration file\n"} {
		s := nltest.SampleState()
		if s.SysInfo.StateError = name; name != "" {
			s.SysInfo.StateFile = ""
		}
		c := stack(t, "x"+name, nltest.NewFake(s)).Control.(keepOpen).Control.(*nl.Client)
		w := &world{t: t, stacks: nl.Multi{{Name: "user", Control: attacher{c}}}}
		for _, verb := range []string{"attach", "detach"} {
			if status, out, errOut := w.run(verb, "--cgroup", "/system.slice/x.service"); status != 0 || out != "" || errOut != says {
				t.Errorf("smcr %s: %d, %q, %q, want %q", verb, status, out, errOut, says)
			}
		}
	}
}
