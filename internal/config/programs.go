// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"smcr/internal/cgroup"
	"smcr/nl"
)

// MaxPrograms is the largest number of entries of Programs: what a stack holds.
const MaxPrograms = 2048

// A Program is an entry of programs: a cgroup whose programs use SMC, as with 'smcr attach'.
type Program struct {
	// Cgroup is its path, from the top of the tree of version 2 on. It need not exist.
	Cgroup string
	// Connect and Accept say whose connections: of sockets that connect, and that accept.
	Connect, Accept bool
	// Always has each connection try SMC, also if it was of no use for many short ones.
	Always bool
	// UID is the user that has asked for it. The YAML form of a Config does not have it, and it makes no difference.
	UID uint32
}

// same reports whether two entries mean the same.
func (x Program) same(y Program) bool {
	x.UID, y.UID = 0, 0
	return x == y
}

// samePath reports whether two entries are of one cgroup.
func (x Program) samePath(y Program) bool { return x.Cgroup == y.Cgroup }

// value returns the entry in words, for a [Change].
func (x Program) value() string {
	s := x.Cgroup
	switch {
	case !x.Accept:
		s += " connect"
	case !x.Connect:
		s += " accept"
	}
	if x.Always {
		s += " no-adapt"
	}
	return s
}

// hasProgram reports whether a list has an entry of a cgroup.
func hasProgram(list []Program, path string) bool {
	return slices.ContainsFunc(list, Program{Cgroup: path}.samePath)
}

// program is the YAML form. The keys are the flags of 'smcr attach'; a missing one means true.
type program struct {
	Cgroup  string `yaml:"cgroup"`
	Connect *bool  `yaml:"connect,omitempty"`
	Accept  *bool  `yaml:"accept,omitempty"`
	Adapt   *bool  `yaml:"adapt,omitempty"`
}

func programsOf(list []Program) []program {
	out := []program{}
	no := func(yes bool) *bool {
		if yes {
			return nil
		}
		return &yes
	}
	for _, x := range list {
		out = append(out, program{x.Cgroup, no(x.Connect), no(x.Accept), no(!x.Always)})
	}
	return out
}

func (p *parser) programs(entries []program) []Program {
	out := []Program{}
	seen := map[string]bool{}
	yes := func(v *bool) bool { return v == nil || *v }
	for i, e := range entries {
		line := p.line("programs", i)
		x := Program{Cgroup: e.Cgroup, Connect: yes(e.Connect), Accept: yes(e.Accept), Always: !yes(e.Adapt)}
		switch {
		case e.Cgroup == "":
			p.fail(line, "the entry of programs has no cgroup")
		case !cgroup.Valid(e.Cgroup):
			p.fail(line, "cgroup %q: write its path from the top of the cgroups, for example /system.slice/nginx.service%s", e.Cgroup, meantCgroup(e.Cgroup))
		case cgroup.IsRun(e.Cgroup):
			p.fail(line, "cgroup %q: the name is one of 'smcr run', which attaches it itself: remove the entry", e.Cgroup)
		case !x.Connect && !x.Accept:
			p.fail(line, "cgroup %q: connect and accept are both false: remove one of them, or the entry", e.Cgroup)
		case seen[e.Cgroup]:
			p.fail(line, "cgroup %q is already listed above", e.Cgroup)
		default:
			out = append(out, x)
			seen[e.Cgroup] = true
		}
	}
	if len(entries) > MaxPrograms {
		p.fail(p.line("programs", MaxPrograms), "%d entries of programs: a stack holds at most %d", len(entries), MaxPrograms)
	}
	return out
}

// meantCgroup returns the path of a cgroup that was probably meant, as the end of a message, or "".
func meantCgroup(p string) string {
	p = path.Clean("/" + p)
	if rest, ok := strings.CutPrefix(p, cgroup.Mount+"/"); ok {
		p = "/" + rest
	}
	if p == "/" || !cgroup.Valid(p) {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", p)
}

// attached returns the programs of a stack by the paths of their cgroups, without those of 'smcr run'. It returns nil if
// the stack does not take the connections of cgroups.
func attached(ctx context.Context, ctl nl.Control) ([]Program, error) {
	a, err := nl.AttacherOf(ctl)
	var all []nl.Attachment
	if err == nil {
		all, err = a.Attachments(ctx)
	}
	if err != nil {
		return nil, known(err)
	}
	out := []Program{}
	for _, x := range all {
		if !x.Run {
			out = append(out, Program{x.Path, x.Connect, x.Accept, x.Always, x.UID})
		}
	}
	slices.SortFunc(out, func(a, b Program) int { return cmp.Compare(a.Cgroup, b.Cgroup) })
	return out, nil
}

// noPrograms says why entries of programs are ignored.
const noPrograms = "programs: this stack takes no connections of cgroups: 'smcr serve' does"

// programs plans the steps from one list to another.
func (p *Plan) programs(now, want []Program) {
	for _, n := range now {
		if hasProgram(want, n.Cgroup) {
			continue
		}
		p.Changes = append(p.Changes, Change{Action: Remove, Object: "program", Program: n})
		p.steps = append(p.steps, attachStep("detach cgroup "+n.Cgroup, Change{}, func(ctx context.Context, a nl.Attacher) error {
			return a.Detach(ctx, n.Cgroup)
		}))
	}
	for _, n := range want {
		action := Add
		if i := slices.IndexFunc(now, n.samePath); i >= 0 {
			if now[i].same(n) {
				continue
			}
			action = Set
		}
		add := Change{Action: action, Object: "program", Program: n}
		p.Changes = append(p.Changes, add)
		p.steps = append(p.steps, attachStep("attach cgroup "+n.Cgroup, add, func(ctx context.Context, a nl.Attacher) error {
			return a.Attach(ctx, nl.Attachment{Path: n.Cgroup, UID: n.UID, Connect: n.Connect, Accept: n.Accept, Always: n.Always})
		}))
	}
}

func attachStep(what string, of Change, do func(context.Context, nl.Attacher) error) step {
	return step{what, of, func(ctx context.Context, ctl nl.Control) error {
		a, err := nl.AttacherOf(ctl)
		if err != nil {
			return err
		}
		return do(ctx, a)
	}}
}
