// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/smc"
)

// choose returns the sockets that the user asks about, and finds out whose they are. The error says
// what was looked for and what else to try.
func (o *options) choose(ctx context.Context, items []item, own map[netip.Addr]bool, w *owners) ([]*item, error) {
	t := o.target
	switch {
	case t.unit != "":
		return o.ofUnit(ctx, items, own, w)
	case t.host != "":
		return o.ofHost(ctx, items, own, w)
	case t.container != "", t.pods != "":
		return o.ofContainer(ctx, items, w)
	}
	port := target{}
	if t.number != 0 {
		if t.number <= 65535 {
			port.port = uint16(t.number)
		}
		if o.env.procs.program(t.number) != nil {
			t = target{pid: t.number}
		} else if t = port; port == (target{}) {
			return nil, cmdutil.Say(os.ErrNotExist, "there is no process %d, and no port has such a number", o.target.number)
		}
	}
	if t.pid != 0 {
		isPort := port.port != 0 && slices.ContainsFunc(items, func(it item) bool { return port.selectsItem(&it, own) })
		return o.ofProcess(t.pid, items, w, isPort)
	}
	if o.target.number != 0 {
		o.note("there is no process %d: this is the port", o.target.number)
	}
	return o.ofAny([]target{t}, items, own, w)
}

// ofAny is choose for what one of some targets selects.
func (o *options) ofAny(targets []target, items []item, own map[netip.Addr]bool, w *owners) ([]*item, error) {
	var chosen []*item
	for i := range items {
		if slices.ContainsFunc(targets, func(t target) bool { return t.selectsItem(&items[i], own) }) {
			chosen = append(chosen, &items[i])
		}
	}
	if len(chosen) == 0 {
		return nil, noneHas(targets[0])
	}
	o.find(chosen, w)
	return chosen, nil
}

// noneHas is the error where no socket is there that was asked about.
func noneHas(t target) error {
	text := fmt.Sprintf("no open TCP or SMC socket of this network namespace has %v: ", t)
	if t.port != 0 {
		text += fmt.Sprintf("'ss -tan sport = :%d' shows those that no program has any more", t.port)
	} else {
		text += fmt.Sprintf("'smcr check %s' tries a connection, and 'smcr stats show -d' counts those that have ended", t.check())
	}
	return cmdutil.Say(os.ErrNotExist, "%s", text)
}

// lookupTime is how long the name of a host may take.
const lookupTime = 5 * time.Second

// errNoHost means that a name is not that of a host.
var errNoHost = errors.New("why: no host has this name")

// ofHost is choose for the name of a host: its addresses, perhaps with a port.
func (o *options) ofHost(ctx context.Context, items []item, own map[netip.Addr]bool, w *owners) ([]*item, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addrs, err := o.env.lookup(ctx, o.target.host)
	if err != nil || len(addrs) == 0 {
		return nil, cmdutil.Say(errors.Join(os.ErrNotExist, errNoHost, err), "the name %s has no address: see 'getent hosts %[1]s'", o.target.host)
	}
	var targets []target
	for _, a := range addrs {
		if a = cmdutil.PlainAddr(a); o.target.hostPort != 0 {
			targets = append(targets, target{pair: netip.AddrPortFrom(a, o.target.hostPort)})
		} else {
			targets = append(targets, target{addr: a})
		}
	}
	return o.ofAny(targets, items, own, w)
}

// find finds the processes of sockets.
func (o *options) find(chosen []*item, w *owners) {
	wanted := map[uint64]bool{}
	for _, it := range chosen {
		if it.row != nil && it.row.stack == kernel {
			wanted[it.row.Inode] = true
		} else if it.tcp != nil {
			wanted[it.tcp.Inode] = true
		}
	}
	delete(wanted, 0)
	w.byInode = o.env.procs.holders(wanted)
}

// ofProcess is choose for a process. isPort reports whether a port has the same number.
func (o *options) ofProcess(pid int, items []item, w *owners, isPort bool) ([]*item, error) {
	p := o.env.procs
	t := p.program(pid)
	if t == nil {
		if k := p.task(pid); k != nil {
			return nil, cmdutil.Say(os.ErrNotExist, "%s is a thread of the kernel, which has no sockets of its own here", k.name())
		}
		return nil, cmdutil.Say(os.ErrNotExist, "there is no process %d%s: 'ss -tlnp' lists processes that listen", pid, o.visible())
	}
	if t.pid != pid {
		o.note("%d is a thread of %s", pid, t.name())
	}
	if p.elsewhere(t.pid) {
		return nil, cmdutil.Say(os.ErrNotExist, "%s is in another network namespace: ask there with 'nsenter -t %d -n smcr why %s', or in its container", t.name(), t.pid, o.arg)
	}
	chosen, err := o.held([]int{t.pid}, items, w)
	switch {
	case len(chosen) > 0:
	case w.stacks[t.pid]:
		return nil, cmdutil.Say(os.ErrNotExist, "%s is the SMC stack, and what it carries belongs to programs: see 'smcr connection list'", t.name())
	case err != nil && notVisible(err):
		return nil, cmdutil.Say(err, "%s belongs to user %s: its sockets are visible to that user and to root: 'sudo smcr why %s'", t.name(), cmdutil.UserName(t.uid), o.arg)
	case err != nil:
		return nil, cmdutil.Say(os.ErrNotExist, "process %d has just ended", pid)
	default:
		if kids := p.children(t.pid); len(kids) == 1 && !isPort {
			o.note("%s has no sockets here: this is its child process %d", t.name(), kids[0])
			return o.ofProcess(kids[0], items, w, false)
		}
		text := fmt.Sprintf("no TCP or SMC socket of %s in this network namespace", t.name())
		if isPort {
			text += fmt.Sprintf(": for the port, use 'smcr why :%d'", pid)
		} else if kids := p.children(t.pid); len(kids) > 0 {
			text += fmt.Sprintf(": it has child processes, such as 'smcr why %d'", kids[0])
		}
		return nil, cmdutil.Say(os.ErrNotExist, "%s", text)
	}
	onlyListens := !slices.ContainsFunc(chosen, func(it *item) bool { return it.conn().State != smc.StateListen })
	if kids := p.children(t.pid); onlyListens && len(kids) > 0 {
		o.note("its child processes have sockets, too: 'smcr why %d', or 'smcr why :%d' for the port", kids[0], chosen[0].conn().Local.Port())
	}
	if isPort {
		o.note("%d is %s; for the port, use 'smcr why :%[1]d'", pid, t.name())
	}
	return chosen, nil
}

// visible limits what is said about processes to what the user may know.
func (o *options) visible() string {
	if o.env.uid == 0 {
		return ""
	}
	return " that is visible to you"
}

// prefer has a process be the one that is shown for its sockets.
func (o *options) prefer(pid int, w *owners) {
	for _, pids := range w.byInode {
		if i := slices.Index(pids, pid); i > 0 {
			pids[0], pids[i] = pids[i], pids[0]
		}
	}
}

// children returns the child processes of a process that have sockets.
func (p *procs) children(pid int) (kids []int) {
	for _, n := range p.pids() {
		if t := p.task(n); t != nil && t.parent == pid {
			if s, err := p.inodes(n); err == nil && len(s) > 0 {
				kids = append(kids, n)
			}
		}
	}
	return kids
}

// note writes a line about the answer to standard error.
func (o *options) note(format string, args ...any) {
	o.IO.Printing()
	printable.Fprintf(o.IO.ErrOut, "smcr: "+format+"\n", args...)
}
