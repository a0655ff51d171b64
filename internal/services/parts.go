// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"smcr/internal/ours"
)

// Reasons why no connection of a unit would use SMC-R. They are wrapped with what to do.
var (
	// ErrNoProgram means that the unit starts no program that could use the network.
	ErrNoProgram = errors.New("the unit starts no program of its own")
	// ErrUnfit means that it is something else.
	ErrUnfit = errors.New("the unit cannot use SMC-R")
)

// A part is a unit whose cgroup has sockets of a service: the service itself, or a socket unit that activates it. systemd
// makes sockets of the Internet in the cgroup of their socket unit, so that its own packet filters see them.
type part struct {
	unit, cgroup string
}

// partsOf returns a unit and its socket units. The errors are those of Cgroup, and ErrUnfit for a template.
func (s systemd) partsOf(ctx context.Context, u Unit) ([]part, error) {
	if _, is := template(u.Name); is {
		return s.templateParts(ctx, u)
	}
	p, err := cgroupOf(u.Name, u.Props)
	if err != nil {
		return nil, err
	}
	parts := []part{{u.Name, p}}
	name, isService := strings.CutSuffix(u.Name, ".service")
	if !isService {
		return parts, nil
	}
	sockets := strings.Fields(u.Props["TriggeredBy"])
	// systemd knows of a socket unit only once something has needed it.
	if own := name + ".socket"; !slices.Contains(sockets, own) {
		sockets = append(sockets, own)
	}
	for _, unit := range sockets {
		if path.Ext(unit) != ".socket" {
			continue
		}
		props, err := s.show(ctx, unit, "ControlGroup", "Id", "LoadState", "Slice", "Triggers")
		if err != nil {
			return nil, err
		}
		if props["LoadState"] != "loaded" || !slices.Contains(strings.Fields(props["Triggers"]), u.Name) {
			continue
		}
		if p, err = cgroupOf(unit, props); err != nil {
			return nil, err
		}
		parts = append(parts, part{unit, p})
	}
	return parts, nil
}

// show returns properties of a unit.
func (s systemd) show(ctx context.Context, unit string, names ...string) (map[string]string, error) {
	out, err := s.ask(ctx, "show", "--property="+strings.Join(names, ","), "--", unit)
	if err != nil {
		return nil, err
	}
	return parseShow(out), nil
}

// kinds are the suffixes of the units that have a cgroup.
var kinds = []string{".service", ".socket", ".slice", ".scope", ".mount", ".swap"}

// unitName returns the name of a unit with its suffix. Without one, a service is meant.
func unitName(name string) string {
	if slices.Contains(kinds, path.Ext(name)) {
		return name
	}
	return name + ".service"
}

// usefulParts returns the unit with a name, and its parts, or why no connection of it would use SMC-R.
func (s systemd) usefulParts(ctx context.Context, name string) (u Unit, parts []part, err error) {
	if u, err = s.read(ctx, name); err != nil {
		return u, nil, err
	}
	if err := useful(u); err != nil {
		return u, nil, err
	}
	parts, err = s.partsOf(ctx, u)
	if err == nil && len(parts) == 1 && u.Props["PrivateNetwork"] == "yes" && u.Props["NetworkNamespacePath"] == "" {
		err = fmt.Errorf("%w: %s has PrivateNetwork=yes, and no network", ErrUnfit, u.Name)
	}
	return u, parts, err
}

// useful returns why no connection of a unit would use SMC-R.
func useful(u Unit) error {
	if err := loaded(u); err != nil {
		return err
	}
	name, isService := strings.CutSuffix(u.Name, ".service")
	if isService && !ours.Unit(u.Name) {
		if err := something(u); err != nil {
			return err
		}
	}
	ns := u.Props["NetworkNamespacePath"]
	switch {
	case ours.Unit(u.Name), ours.Runs(u.Name, u.programs()):
		return fmt.Errorf("%w: %s is a stack or a part of smcr", ErrUnfit, u.Name)
	case ns != "" && !here(ns):
		return fmt.Errorf("%w: %s is in the network namespace %s, which needs a stack of its own: 'nsenter --net=%[3]s smcr service enable %[4]s'", ErrUnfit, u.Name, ns, name)
	}
	return nil
}

// here reports whether a file is that of the network namespace of this process.
func here(file string) bool {
	var own, other syscall.Stat_t
	return syscall.Stat("/proc/self/ns/net", &own) == nil && syscall.Stat(file, &other) == nil && own.Dev == other.Dev && own.Ino == other.Ino
}

// configOf returns the configuration file that a stack in the network namespace of a unit reads, whose usual name is standard: the
// files of a namespace that ip-netns(8) has made are in a folder of its own.
func configOf(u Unit, standard string) string {
	if dir, name := path.Split(u.Props["NetworkNamespacePath"]); dir == "/run/netns/" || dir == "/var/run/netns/" {
		return path.Join("/etc/netns", name, "smcr", path.Base(standard))
	}
	return standard
}

// loaded returns why a unit cannot be used at all.
func loaded(u Unit) error {
	switch state := u.Props["LoadState"]; state {
	case "loaded":
		return nil
	case "not-found":
		return fmt.Errorf("%w: there is no unit %s: see 'systemctl list-unit-files --type=service'", ErrNotFound, u.Name)
	case "masked":
		return fmt.Errorf("%w: unit %s is masked: 'systemctl unmask %s' first", ErrUnfit, u.Name, strings.TrimSuffix(u.Name, ".service"))
	default:
		return fmt.Errorf("%w: unit %s is %s: %s", ErrUnfit, u.Name, state, u.Props["LoadError"])
	}
}

// something returns an error if a service starts no program.
func something(u Unit) error {
	if !nothing(u.exec()) {
		return nil
	}
	if parts := services(u.Props["ConsistsOf"]); len(parts) > 0 {
		return fmt.Errorf("%w: %s stands for others: 'smcr service enable %s'", ErrNoProgram, u.Name, strings.Join(parts, " "))
	}
	return fmt.Errorf("%w: %s", ErrNoProgram, u.Name)
}

// nothing reports whether all commands do nothing, as in a unit that stands for others.
func nothing(exec []string) bool {
	for _, value := range exec {
		if p := path.Base(programOf(value)); p != "true" && p != ":" {
			return false
		}
	}
	return true
}

// services returns the services of a list of units, without suffix.
func services(list string) (names []string) {
	for _, name := range strings.Fields(list) {
		if name, ok := strings.CutSuffix(name, ".service"); ok {
			names = append(names, name)
		}
	}
	return names
}
