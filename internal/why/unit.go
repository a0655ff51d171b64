// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/services"
)

// unitName is the name of a unit of systemd that has processes or sockets.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.@\\-]+\.(service|socket|slice|scope)$`)

func isUnit(name string) bool { return unitName.MatchString(name) }

// unitsOf returns the units of systemd around a process with these cgroups, the outermost first: slices, and in them
// one of another kind. init are the cgroups of process 1, systemd, whose own is beside its slices.
func unitsOf(cgroups, init string) (units []string) {
	paths, tops := systemdCgroups(cgroups), systemdCgroups(init)
	for i, path := range paths {
		path, inside := strings.CutPrefix(path, strings.TrimSuffix(strings.TrimSuffix(tops[i], "/init.scope"), "/")+"/")
		if !inside {
			continue
		}
		// A service may have cgroups of its own below the one of the unit. What is below another cgroup may be a
		// service of a container.
		for word := range strings.SplitSeq(path, "/") {
			if isUnit(word) && !slices.Contains(units, word) {
				units = append(units, word)
			}
			if !strings.HasSuffix(word, ".slice") {
				break
			}
		}
	}
	return units
}

// unitOf returns the service of systemd whose cgroups these are, or "". The services of users are none that smcr service
// knows.
func unitOf(cgroups, init string) string {
	units := unitsOf(cgroups, init)
	i := slices.IndexFunc(units, func(u string) bool { return strings.HasSuffix(u, ".service") })
	if i < 0 || units[0] == "user.slice" {
		return ""
	}
	return units[i]
}

// inUnit returns the processes of a unit.
func (p *procs) inUnit(unit string) []int {
	init := p.read(1, "cgroup")
	return p.those(func(t *task) bool { return slices.Contains(unitsOf(t.cgroups, init), unit) })
}

// called returns the processes of a program.
func (p *procs) called(program string) []int {
	program = program[:min(len(program), 15)] // the kernel keeps no more
	return p.those(func(t *task) bool { return t.comm == program })
}

// those returns the processes that are programs, and such.
func (p *procs) those(such func(*task) bool) (pids []int) {
	for _, pid := range p.pids() {
		if t := p.program(pid); t != nil && t.pid == pid && such(t) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// services returns the services that have processes, by the names that users give.
func (p *procs) services() (names []string) {
	init := p.read(1, "cgroup")
	for _, pid := range p.pids() {
		if t := p.task(pid); t != nil {
			if name, ok := strings.CutSuffix(unitOf(t.cgroups, init), ".service"); ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ofUnit is choose for a unit.
func (o *options) ofUnit(ctx context.Context, items []item, own map[netip.Addr]bool, w *owners) ([]*item, error) {
	t, p := o.target, o.env.procs
	if strings.HasSuffix(t.unit, ".socket") {
		return o.ofSocketUnit(ctx, items, w)
	}
	pids, what := p.inUnit(t.unit), t.unit
	if len(pids) == 0 && t.program != "" {
		if pids, what = p.called(t.program), "program "+t.program; len(pids) > 0 {
			o.note("no process is in a service %s: these are the processes called %s", t.unit, t.program)
		}
	}
	switch {
	case len(pids) > 0:
	case t.program != "":
		o.target = target{host: t.program}
		chosen, err := o.ofHost(ctx, items, own, w)
		if errors.Is(err, errNoHost) {
			err = cmdutil.Say(os.ErrNotExist, "%s is no service or program with a process%s, and no host: see 'systemctl status %[1]s'", t.program, o.visible())
		}
		return chosen, err
	default:
		return nil, cmdutil.Say(os.ErrNotExist, "no process is in %s%s: see 'systemctl status %[1]s'", t.unit, o.visible())
	}
	return o.ofAll(pids, what, items, w)
}

// ofAll is choose for some processes, which are called what.
func (o *options) ofAll(pids []int, what string, items []item, w *owners) ([]*item, error) {
	here := slices.DeleteFunc(slices.Clone(pids), o.env.procs.elsewhere)
	if len(here) == 0 {
		return nil, cmdutil.Say(os.ErrNotExist, "%s is in another network namespace: ask there with 'nsenter -t %d -n smcr why %s', or in its container", what, pids[0], o.arg)
	}
	chosen, err := o.held(here, items, w)
	switch {
	case len(chosen) > 0:
	case err != nil && notVisible(err):
		return nil, cmdutil.Say(err, "%s belongs to another user: its sockets are visible to that user and to root: 'sudo smcr why %s'", what, o.arg)
	case slices.ContainsFunc(here, func(pid int) bool { return w.stacks[pid] }):
		return nil, cmdutil.Say(os.ErrNotExist, "%s is the SMC stack, and what it carries belongs to programs: see 'smcr connection list'", what)
	default:
		return nil, cmdutil.Say(os.ErrNotExist, "no TCP or SMC socket of %s in this network namespace: if systemd listens for it, 'systemctl list-sockets' has the unit to ask about", what)
	}
	return chosen, nil
}

// ofSocketUnit is choose for a unit with sockets on which systemd listens: these, and what was accepted on them.
func (o *options) ofSocketUnit(ctx context.Context, items []item, w *owners) ([]*item, error) {
	at, err := o.env.listens(ctx, o.target.unit)
	switch {
	case errors.Is(err, services.ErrNoSystemd):
		return nil, cmdutil.Say(err, "no systemd runs here: give a process, a port or an address")
	case errors.Is(err, services.ErrNotFound):
		return nil, cmdutil.Say(errors.Join(os.ErrNotExist, err), "no unit %s: see 'systemctl list-sockets'", o.target.unit)
	case err != nil:
		return nil, err
	}
	l := listening{}
	for _, a := range at {
		l[cmdutil.Plain(a)] = true
	}
	var chosen []*item
	for i := range items {
		if _, ok := l.of(items[i].conn()); ok {
			chosen = append(chosen, &items[i])
		}
	}
	if len(chosen) == 0 {
		return nil, cmdutil.Say(os.ErrNotExist, "no TCP or SMC socket of %s in this network namespace: see 'systemctl status %[1]s'", o.target.unit)
	}
	o.find(chosen, w)
	return chosen, nil
}

// held returns the sockets that processes have, and the error of a process that has none to see.
func (o *options) held(pids []int, items []item, w *owners) (chosen []*item, err error) {
	p := o.env.procs
	has := map[uint64]bool{} // true: a process has it that is no stack
	for _, pid := range pids {
		inodes, rerr := p.inodes(pid)
		if rerr != nil {
			err = rerr
		}
		for _, i := range inodes {
			has[i] = has[i] || !w.stacks[pid]
		}
	}
	for i := range items {
		it := &items[i]
		embedded := it.row != nil && it.carried() && slices.Contains(pids, int(it.row.PID))
		sock, ok := false, false
		if it.tcp != nil {
			sock, ok = has[it.tcp.Inode]
		}
		if embedded || it.row != nil && it.row.stack == kernel && has[it.row.Inode] || ok && (sock || !it.carried()) {
			chosen = append(chosen, it)
		}
	}
	o.find(chosen, w)
	for _, pid := range slices.Backward(pids) {
		o.prefer(pid, w)
	}
	return chosen, err
}
