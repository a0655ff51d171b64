// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
)

// row is a unit in smcr service status.
type row struct {
	Unit      string `json:"unit"`
	Enabled   bool   `json:"enabled"` // has the drop-in file
	Active    string `json:"active"`
	Sub       string `json:"sub"`
	MainPID   int    `json:"main_pid"`
	Under     bool   `json:"under_smcr_run"`
	Launchers []int  `json:"launchers"`
}

// status lists units.
func status(ctx context.Context, o *options, names []string) error {
	if len(names) == 0 {
		var err error
		if names, err = o.enabled(); err != nil {
			return err
		}
	}
	rows := []row{}
	for _, name := range names {
		u, err := o.read(ctx, name)
		if err != nil {
			return err
		}
		if u.Props["LoadState"] == "not-found" {
			return fmt.Errorf("%w: there is no unit %s: see 'systemctl list-unit-files --type=service'", ErrNotFound, u.Name)
		}
		r := row{Unit: u.Name, Active: u.Props["ActiveState"], Sub: u.Props["SubState"], Launchers: o.launchers(o.processes(u))}
		r.MainPID, _ = strconv.Atoi(u.Props["MainPID"])
		_, serr := os.Stat(o.file(u.Name))
		r.Enabled, r.Under = serr == nil, len(r.Launchers) > 0
		if r.Launchers == nil {
			r.Launchers = []int{}
		}
		rows = append(rows, r)
	}
	if o.format == cmdutil.FormatJSON {
		return output.JSON(o.IO.Out, rows)
	}
	t := output.NewTable("Unit", "Enabled", "State", ">Main PID", "Under smcr run")
	for _, r := range rows {
		pid := ""
		if r.MainPID > 0 {
			pid = strconv.Itoa(r.MainPID)
		}
		under := output.YesNo(r.Under)
		if !r.Under && r.Enabled && r.Active == "active" {
			under = "no: restart it"
		}
		t.Add(r.Unit, output.YesNo(r.Enabled), r.Active+" ("+r.Sub+")", output.Or(pid), under)
	}
	return t.Print(o.IO.Out)
}
