// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/nl"
)

// A service is enabled by its cgroups, and its unit stays as it is:
//
//	what             | lasts
//	-----------------+-------------------------------------------
//	the attachment   | as long as the stacks, one after the other
//	the entry in a   | from the next boot on
//	drop-in file     |
//
// Both are paths of cgroups, so nobody asks systemd when the unit, or a stack, starts.

// stack calls do with the stack in user space, or with nil if there is none.
func (o *options) stack(ctx context.Context, do func(ctx context.Context, a nl.Attacher) error) error {
	called := false
	err := o.With(ctx, func(ctx context.Context, m nl.Multi) error {
		var stack nl.Attacher
		for _, b := range m {
			a, err := nl.AttacherOf(b)
			if err != nil {
				continue // the kernel's
			}
			if _, err = a.Attachments(ctx); errors.Is(err, nl.ErrNotSupported) {
				err = cmdutil.Say(err, "the stack takes no connections of programs: 'smcr info' says why")
			}
			if err != nil {
				return err
			}
			stack, o.control = a, b
			break
		}
		called = true
		return do(ctx, stack)
	})
	if !called && errors.Is(err, nl.ErrNoBackend) {
		err = do(ctx, nil)
	}
	return err
}

// enable has the connections of a unit use SMC-R from now on.
func enable(ctx context.Context, o *options, a nl.Attacher, name string) error {
	u, parts, err := o.usefulParts(ctx, name)
	if err != nil {
		return err
	}
	c := &candidate{unit: u, parts: parts}
	all, err := o.entries(ctx, a, u)
	if err != nil {
		return err
	}
	c.fresh = above(all, parts[0].cgroup) == nil && !slices.ContainsFunc(all, func(x attached) bool { return x.by != nil && x.cgroup == parts[0].cgroup })
	o.look(c) // before it is attached: later connections are no old ones
	undo, err := o.addEntries(u, parts)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if a == nil {
			continue
		}
		if err := a.Attach(ctx, nl.Attachment{Path: p.cgroup, Connect: true, Accept: true}); err != nil {
			return errors.Join(err, undo())
		}
	}
	if err := o.dropOld(ctx, u); err != nil {
		return err
	}
	if a == nil {
		unit := cmp.Or(o.stackUnit(), "smcr.service")
		o.say("%s uses SMC-R as soon as there is a stack: 'systemctl enable --now %s'", u.Name, short(unit))
	} else {
		o.say("new connections of %s use SMC-R if the peer does", u.Name)
	}
	if err := o.restartIfAsked(ctx, u); err != nil {
		return err
	}
	c.fresh = c.fresh && !o.restart
	o.enabled = append(o.enabled, c)
	return nil
}

// disable is the inverse of enable.
func disable(ctx context.Context, o *options, a nl.Attacher, name string) error {
	u, err := o.read(ctx, name)
	if err != nil {
		return err
	}
	all, err := o.entries(ctx, a, u)
	if err != nil {
		return err
	}
	parts, above, err := o.enabledParts(ctx, all, u)
	if err != nil {
		return err
	}
	if _, err := os.Stat(o.file(u.Name)); err != nil && len(parts) == 0 {
		if above != "" {
			return fmt.Errorf("%w: %s is enabled by %s, which it is in: 'smcr service disable %[3]s' has all in that use TCP", ErrNotFound, u.Name, above)
		}
		return fmt.Errorf("%w: %s was not enabled: see 'smcr service status'", ErrNotFound, u.Name)
	}
	if err := o.removeEntries(u, parts); err != nil {
		return err
	}
	for _, p := range parts {
		if a == nil {
			continue
		}
		if err := a.Detach(ctx, p.cgroup); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := o.dropOld(ctx, u); err != nil {
		return err
	}
	if above != "" {
		o.say("%s goes on to use SMC-R: it is in %s, which is enabled", u.Name, above)
	} else {
		o.say("new connections of %s are TCP", u.Name)
	}
	return o.restartIfAsked(ctx, u)
}

// enabledParts returns the parts of a unit that have an entry, with those that it had when it was enabled, and the unit or cgroup above
// it that has one, too.
func (o *options) enabledParts(ctx context.Context, all []attached, u Unit) (parts []part, by string, err error) {
	names := []string{u.Name, strings.TrimSuffix(u.Name, ".service") + ".socket"}
	if prefix, is := template(u.Name); is {
		names = []string{ownSlice(prefix) + ".slice", prefix + ".socket"}
	}
	if u.Props["LoadState"] == "loaded" {
		now, err := o.partsOf(ctx, u)
		if err != nil && !errors.Is(err, ErrUnfit) { // it may have been fit once
			return nil, "", err
		}
		for i, p := range now {
			names = append(names, p.unit)
			if x := above(all, p.cgroup); i == 0 && x != nil {
				by = x.unit
			}
		}
	}
	for _, p := range all {
		if slices.Contains(names, p.unit) {
			parts = append(parts, p.part)
		}
	}
	return parts, by, nil
}

// An attached is a cgroup that is attached, or in the configuration.
type attached struct {
	part
	by    *nl.Attachment // nil: there is no stack
	not   bool           // it is neither, but was asked for
	above *attached      // then: what is, and has this one in it, or nil
}

// isUnit reports whether a cgroup is that of a unit.
func (x *attached) isUnit() bool { return slices.Contains(kinds, path.Ext(x.unit)) }

// above returns the innermost entry that has a cgroup in it, or nil.
func above(all []attached, cgroup string) (best *attached) {
	for i, x := range all {
		if within(cgroup, x.cgroup) && cgroup != x.cgroup && (best == nil || len(x.cgroup) > len(best.cgroup)) {
			best = &all[i]
		}
	}
	return best
}

// within reports whether a cgroup is another one, or in it.
func within(cgroup, top string) bool {
	rest, ok := strings.CutPrefix(cgroup, strings.TrimSuffix(top, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// entryOf returns the cgroup of an entry as a part. One that is of no unit has its path as its name.
func entryOf(cgroup string) part {
	if name := path.Base(cgroup); slices.Contains(kinds, path.Ext(name)) {
		return part{name, cgroup}
	}
	return part{cgroup, cgroup}
}

// entries returns the cgroups that are attached, or in the configuration of the stack of a unit.
func (o *options) entries(ctx context.Context, a nl.Attacher, u Unit) (all []attached, err error) {
	if a != nil {
		have, err := a.Attachments(ctx)
		if err != nil {
			return nil, err
		}
		for _, x := range have {
			if !x.Run {
				all = append(all, attached{part: entryOf(x.Path), by: &x})
			}
		}
	}
	c, err := config.Load(configOf(u, o.config))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if c == nil {
		return all, nil
	}
	for _, x := range c.Programs {
		if !slices.ContainsFunc(all, func(y attached) bool { return y.cgroup == x.Cgroup }) {
			all = append(all, attached{part: entryOf(x.Cgroup)})
		}
	}
	return all, nil
}

// dropOld removes a drop-in file of an earlier release, with which the unit is under smcr run.
func (o *options) dropOld(ctx context.Context, u Unit) error {
	old, err := os.ReadFile(o.file(u.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = o.remove(u.Name)
	}
	if err != nil {
		return err
	}
	o.printLines(o.file(u.Name), string(old), "")
	if err := o.reload(ctx); err != nil {
		return err
	}
	if !o.restart {
		o.sayRestart(u)
	}
	return nil
}

func (o *options) restartIfAsked(ctx context.Context, u Unit) error {
	if !o.restart {
		return nil
	}
	return o.restarted(ctx, u)
}

// An entry is what enable adds to the configuration for a unit.
type entry struct {
	Unit string `json:"unit"`
	File string `json:"file"`
	Text string `json:"text"`
}

// show prints what enable would add to the configuration.
func show(ctx context.Context, o *options, names []string) error {
	all := []entry{}
	for _, name := range names {
		u, parts, err := o.usefulParts(ctx, name)
		if err != nil {
			return err
		}
		text := []byte{}
		for _, p := range parts {
			if text, err = config.AddProgram(text, p.cgroup); err != nil {
				return err
			}
		}
		all = append(all, entry{u.Name, ownFile(configOf(u, o.config)), string(text)})
	}
	if o.format == cmdutil.FormatJSON {
		return output.JSON(o.IO.Out, all)
	}
	for _, e := range all {
		printable.Fprintf(o.IO.Out, "# %s\n", e.File)
		for line := range strings.Lines(e.Text) {
			printable.Fprintf(o.IO.Out, "%s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	return nil
}
