// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A template, such as "foo@.service", stands for all its instances, those of now and those to come. systemd puts them into
// a slice that only they are in, "system-foo.slice", unless the template says otherwise. So its part is that slice.

// probes are instances that nobody has. systemctl shows no template, but what its instances would be.
var probes = [2]string{"smcr-probe-1", "smcr-probe-2"}

// template returns the name of a template without "@" and suffix.
func template(name string) (prefix string, ok bool) {
	if !slices.Contains(kinds, path.Ext(name)) {
		return "", false
	}
	return strings.CutSuffix(strings.TrimSuffix(name, path.Ext(name)), "@")
}

// instance returns the name of an instance of a template.
func instance(name, of string) string {
	ext := path.Ext(name)
	return strings.TrimSuffix(name, ext) + of + ext
}

// ownSlice returns the slice into which systemd puts the instances of a template, without its suffix. A dash in it would
// begin another slice, so it is escaped (systemd.unit(5)).
func ownSlice(prefix string) string {
	return "system-" + strings.NewReplacer(`\`, `\x5c`, "-", `\x2d`).Replace(prefix)
}

// readTemplate reads the properties of the instances of a template. Slice is empty if each is somewhere else.
func (s systemd) readTemplate(ctx context.Context, u *Unit) error {
	var all [2]map[string]string
	for i, of := range probes {
		props, err := s.show(ctx, instance(u.Name, of), properties...)
		if err != nil {
			return err
		}
		all[i] = props
	}
	u.Props = all[0]
	// name may be another name of it.
	if id := u.Props["Id"]; strings.Contains(id, "@"+probes[0]+".") {
		u.Name = strings.Replace(id, "@"+probes[0]+".", "@.", 1)
	}
	if ns := "NetworkNamespacePath"; u.Props["Slice"] != all[1]["Slice"] || u.Props[ns] != all[1][ns] {
		u.Props["Slice"], u.Props[ns] = "", ""
	}
	return nil
}

// templateParts returns the slice of the instances of a template, and the socket units that start them.
func (s systemd) templateParts(ctx context.Context, u Unit) ([]part, error) {
	prefix, _ := template(u.Name)
	short := strings.TrimSuffix(u.Name, ".service")
	own := ownSlice(prefix)
	switch slice := u.Props["Slice"]; {
	case slice == "":
		return nil, fmt.Errorf("%w: each instance of %s is in a slice or a network namespace of its own: name the instances, as in 'smcr service enable %sNAME'", ErrUnfit, u.Name, short)
	case slice != own+".slice":
		return nil, fmt.Errorf("%w: the instances of %s are in %s, where others may be, too: name the instances, as in 'smcr service enable %sNAME', or that slice",
			ErrUnfit, u.Name, slice, short)
	}
	p, err := cgroupOf(u.Name, map[string]string{"Id": u.Name, "LoadState": "loaded", "Slice": u.Props["Slice"]})
	if err != nil {
		return nil, err
	}
	parts := []part{{own + ".slice", path.Dir(p)}}
	if path.Ext(u.Name) != ".service" {
		return parts, nil
	}
	// One that starts an instance for each connection has no instances itself.
	unit := prefix + ".socket"
	props, err := s.show(ctx, unit, "Accept", "ControlGroup", "Id", "LoadState", "Slice")
	if err != nil || props["LoadState"] != "loaded" || props["Accept"] != "yes" {
		return parts, err
	}
	if p, err = cgroupOf(unit, props); err != nil {
		return nil, err
	}
	return append(parts, part{unit, p}), nil
}

// perConnection returns the template whose instances a socket unit with the name of a service starts, one for each connection, or "".
func (s systemd) perConnection(ctx context.Context, u Unit) string {
	name, isService := strings.CutSuffix(u.Name, ".service")
	if _, is := template(u.Name); is || !isService {
		return ""
	}
	props, err := s.show(ctx, name+".socket", "Accept", "ActiveState", "LoadState")
	if err != nil || props["LoadState"] != "loaded" || props["Accept"] != "yes" || props["ActiveState"] != "active" {
		return ""
	}
	return name + "@"
}
