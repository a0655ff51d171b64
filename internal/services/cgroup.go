// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"path"
	"strings"

	"smcr/internal/cgroup"
)

// Cgroup returns the path of the cgroup of a unit of systemd, of any kind, or that which it will have if it does not
// run. The error matches ErrNoSystemd, ErrNotFound, or ErrNoProgram for a unit that has no processes.
func Cgroup(ctx context.Context, unit string) (string, error) {
	out, err := newSystemd().ask(ctx, "show", "--property=ControlGroup,Id,LoadState,Slice", "--", unit)
	if err != nil {
		return "", err
	}
	return cgroupOf(unit, parseShow(out))
}

// cgroupOf returns the cgroup of a unit by its properties.
func cgroupOf(unit string, props map[string]string) (string, error) {
	if p := props["ControlGroup"]; cgroup.Valid(p) && p != "/" {
		return p, nil
	}
	if props["LoadState"] == "not-found" || props["Id"] == "" {
		return "", fmt.Errorf("%w: %s", ErrNotFound, unit)
	}
	slice, ok := strings.CutSuffix(props["Slice"], ".slice")
	if !ok {
		return "", fmt.Errorf("%w: %s", ErrNoProgram, unit)
	}
	// A slice is below those whose names its name begins with (systemd.slice(5)).
	p := "/"
	if slice != "-" {
		parts := strings.Split(slice, "-")
		for i := range parts {
			p = path.Join(p, strings.Join(parts[:i+1], "-")+".slice")
		}
	}
	return path.Join(p, props["Id"]), nil
}
