// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/nl"
	"smcr/smc"
)

// row is a unit in smcr service status.
type row struct {
	Unit     string   `json:"unit"`
	Cgroup   string   `json:"cgroup"`
	Enabled  bool     `json:"enabled"`
	By       string   `json:"by"`       // the unit or cgroup above that is enabled, and has its counts
	Attached bool     `json:"attached"` // the stack has it, and the cgroup is there
	Active   string   `json:"active"`
	Sub      string   `json:"sub"`
	MainPID  int      `json:"main_pid"`
	SMCR     uint64   `json:"smcr"`
	TCP      uint64   `json:"tcp"`
	Reasons  []reason `json:"reasons"`
}

// A reason is why connections of a unit are TCP.
type reason struct {
	Side   string `json:"side"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	Count  uint64 `json:"count"`
}

// status lists units: the named ones with their socket units, or all that are enabled.
func status(ctx context.Context, o *options, a nl.Attacher, names []string) error {
	rows, err := o.rows(ctx, a, names)
	if err != nil {
		return err
	}
	if o.format == cmdutil.FormatJSON {
		return output.JSON(o.IO.Out, rows)
	}
	t := output.NewTable("Unit", "Enabled", "State", ">Main PID", ">SMC-R", ">TCP", "Why TCP")
	for _, r := range rows {
		pid, why := "", ""
		if r.MainPID > 0 {
			pid = strconv.Itoa(r.MainPID)
		}
		if len(r.Reasons) > 0 {
			why = cmp.Or(r.Reasons[0].Text, r.Reasons[0].Reason)
		}
		enabled, carried, tcp := output.YesNo(r.Enabled), any(r.SMCR), any(r.TCP)
		switch {
		case r.Enabled && a == nil:
			enabled = "yes, but no stack runs"
		case r.By != "":
			enabled, carried, tcp = "by "+r.By, "-", "-"
		}
		t.Add(r.Unit, enabled, r.Active+" ("+r.Sub+")", output.Or(pid), carried, tcp, output.Or(why))
	}
	if err := t.Print(o.IO.Out); err != nil {
		return err
	}
	if len(rows) == 0 {
		o.say("no service is enabled: 'smcr service enable UNIT' enables one")
	} else if a == nil {
		o.say("no stack runs: start it with 'systemctl enable --now %s'", short(cmp.Or(o.stackUnit(), "smcr.service")))
	}
	return nil
}

func (o *options) rows(ctx context.Context, a nl.Attacher, names []string) ([]row, error) {
	all, err := o.entries(ctx, a, Unit{})
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		all = slices.DeleteFunc(all, func(x attached) bool { return !x.isUnit() })
		slices.SortFunc(all, func(x, y attached) int { return cmp.Compare(x.unit, y.unit) })
	} else {
		have := all
		all = nil
		for _, name := range names {
			u, err := o.read(ctx, name)
			if err == nil {
				err = loaded(u)
			}
			if err != nil {
				return nil, err
			}
			parts, err := o.partsOf(ctx, u)
			if err != nil {
				return nil, err
			}
			for _, p := range parts {
				x := attached{part: p}
				if i := slices.IndexFunc(have, func(y attached) bool { return y.cgroup == p.cgroup }); i >= 0 {
					x = have[i]
				} else {
					x.above = above(have, p.cgroup)
					x.not = x.above == nil
				}
				all = append(all, x)
			}
		}
	}
	rows := []row{}
	for _, x := range all {
		props, err := o.systemd.show(ctx, x.unit, "ActiveState", "SubState", "MainPID")
		if err != nil {
			return nil, err
		}
		r := row{Unit: x.unit, Cgroup: x.cgroup, Enabled: !x.not, Active: props["ActiveState"], Sub: props["SubState"], Reasons: []reason{}}
		r.MainPID, _ = strconv.Atoi(props["MainPID"])
		if up := x.above; up != nil {
			r.By, r.Attached = up.unit, up.by != nil && up.by.Cgroup != 0
		}
		if by := x.by; by != nil {
			r.Attached, r.SMCR = by.Cgroup != 0, by.SMCR
			for _, t := range by.TCP {
				r.TCP += t.Count
				r.Reasons = append(r.Reasons, reason{t.Side.String(), fmt.Sprintf("0x%08x", t.Reason), smc.Diagnosis(t.Reason).Text(), t.Count})
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}
