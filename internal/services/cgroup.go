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
// run. That of a template is the slice of its instances. The error matches ErrNoSystemd, ErrNotFound, ErrNoProgram for a unit that has
// no processes, or ErrUnfit for a template whose instances have no slice for themselves.
func Cgroup(ctx context.Context, unit string) (string, error) {
	s := newSystemd()
	if _, is := template(unitName(unit)); is {
		u := Unit{Name: unitName(unit)}
		if err := s.readTemplate(ctx, &u); err != nil {
			return "", err
		}
		if u.Props["LoadState"] != "loaded" {
			return "", fmt.Errorf("%w: %s", ErrNotFound, u.Name)
		}
		parts, err := s.templateParts(ctx, u)
		if err != nil {
			return "", err
		}
		return parts[0].cgroup, nil
	}
	props, err := s.show(ctx, unit, "ControlGroup", "Id", "LoadState", "Slice")
	if err != nil {
		return "", err
	}
	return cgroupOf(unit, props)
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
