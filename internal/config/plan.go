// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"smcr/nl"
)

// undoTimeout is the time limit for undoing a failed plan, also after the end of the
// caller's context.
const undoTimeout = 10 * time.Second

// Export returns the current configuration of a stack. It leaves out sections that
// the stack does not support, and the system enterprise ID if there is none.
func Export(ctx context.Context, ctl nl.Control) (*Config, error) {
	c := &Config{}
	pnets, err := ctl.PNETs(ctx)
	if err = known(err); err != nil {
		return nil, err
	}
	c.PNETs = append([]nl.PNET{}, pnets...)
	eids, err := ctl.UEIDs(ctx)
	switch {
	case err == nil:
		c.UEIDs = append([]string{}, eids...)
	case known(err) != nil:
		return nil, err
	}
	seid, err := ctl.SEID(ctx)
	switch {
	case err == nil && seid.Value != "":
		c.SEID = &seid.Enabled
	case known(err) != nil:
		return nil, err
	}
	hs, err := ctl.HSLimitation(ctx)
	switch {
	case err == nil:
		c.HSLimitation = &hs
	case known(err) != nil:
		return nil, err
	}
	c.Programs, err = attached(ctx, ctl)
	return c, err
}

// known drops the error of a stack that does not support the request.
func known(err error) error {
	if errors.Is(err, nl.ErrNotSupported) {
		return nil
	}
	return err
}

// An Action is a kind of change to an object of the configuration.
type Action string

// Actions.
const (
	Add    Action = "add"    // the object is added
	Remove Action = "remove" // the object is removed
	Set    Action = "set"    // the setting gets another value
)

// A Change is one difference between a stack and a configuration, as users see it.
type Change struct {
	Action  Action  `json:"action"`
	Object  string  `json:"object"`          // "pnetid", "ueid", "seid", "handshake_limitation" or "program"
	PNET    nl.PNET `json:"-"`               // of a pnetid
	Program Program `json:"-"`               // of a program
	Value   string  `json:"value,omitempty"` // the enterprise ID, or true or false
}

// String returns the change in one line: "+" adds, "-" removes, "=" sets.
func (c Change) String() string {
	sign := map[Action]string{Add: "+", Remove: "-", Set: "="}[c.Action]
	switch {
	case c.Object == "pnetid" && c.PNET.NetDev != "":
		return fmt.Sprintf("%s pnetid %s netdev %s", sign, c.PNET.ID, c.PNET.NetDev)
	case c.Object == "pnetid":
		return fmt.Sprintf("%s pnetid %s ibdev %s ibport %d", sign, c.PNET.ID, c.PNET.IBDev, c.PNET.IBPort)
	case c.Object == "program" && c.Action == Remove:
		return fmt.Sprintf("%s program %s", sign, c.Program.Cgroup)
	case c.Object == "program":
		return fmt.Sprintf("%s program %s", sign, c.Program.value())
	}
	return fmt.Sprintf("%s %s %s", sign, c.Object, c.Value)
}

// A step is one call of a [nl.Control].
type step struct {
	what string // for the error
	of   Change // that the configuration asks for; zero if an entry is removed
	do   func(context.Context, nl.Control) error
}

// A Plan is the list of steps that bring one stack to a configuration.
type Plan struct {
	// Changes are the differences, removals first. Empty means that the stack
	// already has the configuration.
	Changes []Change
	// Ignored says in a sentence each which sections mean nothing to the stack.
	Ignored []string

	before *Config
	steps  []step
}

// Plan compares the stack with c, without a change.
func (c *Config) Plan(ctx context.Context, ctl nl.Control) (*Plan, error) {
	now, err := Export(ctx, ctl)
	if err != nil {
		return nil, err
	}
	p := &Plan{before: now}
	if c.PNETs != nil {
		p.pnets(now.PNETs, c.PNETs)
	}
	// Enabling comes first and disabling last: without a user-defined enterprise
	// ID, a stack refuses to disable that of the system.
	seid := c.SEID
	if seid != nil && *seid && (now.SEID == nil || !*now.SEID) {
		p.set("seid", true, nl.Control.SetSEID)
	}
	emptied := false
	if c.UEIDs != nil {
		emptied = p.ueids(now.UEIDs, c.UEIDs)
	}
	switch {
	case seid != nil && !*seid && (now.SEID == nil || *now.SEID):
		p.set("seid", false, nl.Control.SetSEID)
	case emptied && now.SEID != nil && !*now.SEID && len(c.UEIDs) > 0 && (seid == nil || !*seid):
		// The table was empty for a moment, which enables it. This is not a change.
		p.steps = append(p.steps, setStep("seid", false, nl.Control.SetSEID))
	}
	if hs := c.HSLimitation; hs != nil && (now.HSLimitation == nil || *now.HSLimitation != *hs) {
		p.set("handshake_limitation", *hs, nl.Control.SetHSLimitation)
	}
	switch {
	case now.Programs != nil && c.Programs != nil:
		p.programs(now.Programs, c.Programs)
	case len(c.Programs) > 0:
		p.Ignored = append(p.Ignored, noPrograms)
	}
	return p, nil
}

// pnets plans the steps from one table to another. A stack removes all entries of a
// pnetid together, so the entries that must stay are added again at once.
func (p *Plan) pnets(now, want []nl.PNET) {
	cleared := map[string]bool{}
	for _, n := range now {
		if slices.Contains(want, n) {
			continue
		}
		p.Changes = append(p.Changes, Change{Action: Remove, Object: "pnetid", PNET: n})
		if !cleared[n.ID] {
			cleared[n.ID] = true
			p.steps = append(p.steps, step{"remove pnetid " + n.ID, Change{}, func(ctx context.Context, ctl nl.Control) error {
				return ctl.RemovePNET(ctx, n.ID)
			}})
		}
	}
	for _, n := range want {
		had, add := slices.Contains(now, n), Change{Action: Add, Object: "pnetid", PNET: n}
		if !had {
			p.Changes = append(p.Changes, add)
		}
		if !had || cleared[n.ID] {
			p.steps = append(p.steps, step{fmt.Sprintf("give pnetid %s to %s", n.ID, n.NetDev+n.IBDev), add, func(ctx context.Context, ctl nl.Control) error {
				return ctl.AddPNET(ctx, n)
			}})
		}
	}
}

// ueids plans the steps from one list to another and reports whether the stack's list
// is empty for a moment. A stack holds only a few, so removals come first.
func (p *Plan) ueids(now, want []string) (emptied bool) {
	left := len(now)
	for _, eid := range now {
		if slices.Contains(want, eid) {
			continue
		}
		left--
		p.Changes = append(p.Changes, Change{Action: Remove, Object: "ueid", Value: eid})
		p.steps = append(p.steps, step{"remove enterprise ID " + eid, Change{}, func(ctx context.Context, ctl nl.Control) error {
			err := ctl.RemoveUEID(ctx, eid)
			if errors.Is(err, syscall.EAGAIN) {
				return nil // done; the error only says that the system's is enabled again
			}
			return err
		}})
	}
	for _, eid := range want {
		if !slices.Contains(now, eid) {
			add := Change{Action: Add, Object: "ueid", Value: eid}
			p.Changes = append(p.Changes, add)
			p.steps = append(p.steps, step{"define enterprise ID " + eid, add, func(ctx context.Context, ctl nl.Control) error {
				return ctl.AddUEID(ctx, eid)
			}})
		}
	}
	return len(now) > 0 && left == 0
}

func (p *Plan) set(object string, on bool, f func(nl.Control, context.Context, bool) error) {
	p.Changes = append(p.Changes, setting(object, on))
	p.steps = append(p.steps, setStep(object, on, f))
}

func setting(object string, on bool) Change {
	return Change{Action: Set, Object: object, Value: fmt.Sprint(on)}
}

func setStep(object string, on bool, f func(nl.Control, context.Context, bool) error) step {
	return step{fmt.Sprintf("set %s to %t", object, on), setting(object, on), func(ctx context.Context, ctl nl.Control) error {
		return f(ctl, ctx, on)
	}}
}

// An ApplyError says which step of a plan failed, and whether the stack is in the
// same state as before.
type ApplyError struct {
	Step  string // such as "give pnetid NET1 to eth0"
	Err   error  // why it failed
	Undo  error  // nil: the stack is in the same state as before; otherwise why not
	Where string // "FILE: line N" of the entry that asks for it, or "": see [Locate]

	of Change
}

// Error returns where, what failed, why, and the state of the stack.
func (e *ApplyError) Error() string {
	s := fmt.Sprintf("config: %s: %v", e.Step, e.Err)
	if e.Where != "" {
		s = fmt.Sprintf("config: %s: %s: %v", e.Where, e.Step, e.Err)
	}
	if e.Undo != nil {
		return fmt.Sprintf("%s; undoing the earlier changes failed too: %v", s, e.Undo)
	}
	return s + "; nothing was changed"
}

// Unwrap returns the cause.
func (e *ApplyError) Unwrap() error { return e.Err }

// Apply carries out the plan on the stack for which it was made. If a step fails,
// Apply undoes the steps before it and returns an [ApplyError].
func (p *Plan) Apply(ctx context.Context, ctl nl.Control) error {
	for i, s := range p.steps {
		err := s.do(ctx, ctl)
		if err == nil {
			continue
		}
		failed := &ApplyError{Step: s.what, Err: err, of: s.of}
		if i > 0 || ctx.Err() != nil {
			failed.Undo = restore(ctx, ctl, p.before)
		}
		return failed
	}
	return nil
}

// restore brings the stack back to an earlier state.
func restore(ctx context.Context, ctl nl.Control, before *Config) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	p, err := before.Plan(ctx, ctl)
	if err != nil {
		return err
	}
	for _, s := range p.steps {
		if err := s.do(ctx, ctl); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// Apply plans and applies c, and returns the changes.
func (c *Config) Apply(ctx context.Context, ctl nl.Control) ([]Change, error) {
	p, err := c.Plan(ctx, ctl)
	if err != nil {
		return nil, err
	}
	return p.Changes, p.Apply(ctx, ctl)
}
