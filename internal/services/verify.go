// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"
)

const (
	// defaultWait is how long enable waits for a connection of its units.
	defaultWait = 2 * time.Second
	// lookEvery is how often it looks. The stack reports no connections by itself.
	lookEvery = 100 * time.Millisecond
)

// A candidate is a unit that was enabled, and is to be verified.
type candidate struct {
	unit  Unit
	parts []part
	fresh bool // it was TCP until now
	open  int  // connections that it had then, but for those within this machine
	ports []netip.AddrPort
	start counts
}

// counts says what became of the connections of cgroups.
type counts struct {
	smcr uint64
	tcp  map[nl.Fallback]uint64 // by side and reason
}

// since returns what is new.
func (c counts) since(before counts) (smcr, tcp uint64, most nl.Fallback) {
	for why, n := range c.tcp {
		n -= min(n, before.tcp[why])
		tcp += n
		if n > most.Count || n == most.Count && n > 0 && why.Reason < most.Reason {
			most = nl.Fallback{Side: why.Side, Reason: why.Reason, Count: n}
		}
	}
	return c.smcr - min(c.smcr, before.smcr), tcp, most
}

// countsOf adds the counts of the parts, and says whether one of their cgroups is there.
func countsOf(have []nl.Attachment, parts []part) (c counts, there bool) {
	c.tcp = map[nl.Fallback]uint64{}
	for _, a := range have {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.cgroup == a.Path }) {
			continue
		}
		there = there || a.Cgroup != 0
		c.smcr += a.SMCR
		for _, t := range a.TCP {
			c.tcp[nl.Fallback{Side: t.Side, Reason: t.Reason}] += t.Count
		}
	}
	return c, there
}

// verify says of each unit that was enabled whether its connections use SMC-R by now, or how to find out, and what is missing.
func (o *options) verify(ctx context.Context, a nl.Attacher, units []*candidate) error {
	if len(units) == 0 {
		return nil
	}
	var waits []*candidate
	for _, c := range units {
		if a == nil {
			break // enable has said what is missing
		}
		have, err := a.Attachments(ctx)
		if err != nil {
			return err
		}
		if c.fresh && c.open > 0 {
			o.say("%s of %s %s TCP until %s", number(c.open, "open connection"), c.unit.Name, one(c.open, "stays", "stay"), one(c.open, "it ends", "they end"))
		}
		var there bool
		if c.start, there = countsOf(have, c.parts); there {
			waits = append(waits, c)
			continue
		}
		if of := o.perConnection(ctx, c.unit); of != "" {
			o.say("%s does not run: %s.socket starts an instance of %s for each connection: 'smcr service enable %[3]s'", c.unit.Name, strings.TrimSuffix(of, "@"), of)
			continue
		}
		o.say("%s does not run: its connections use SMC-R when it does", c.unit.Name)
	}
	if err := o.await(ctx, a, waits); err != nil {
		return err
	}
	o.sayBoot(ctx)
	return nil
}

// await waits until each unit has a new connection, but not long, and prints what became of these.
func (o *options) await(ctx context.Context, a nl.Attacher, units []*candidate) error {
	if len(units) == 0 || o.wait <= 0 {
		return nil
	}
	progress := o.IO.Progress("waiting for a connection")
	defer progress.Stop()
	var have []nl.Attachment
	for end := time.Now().Add(o.wait); ; {
		var err error
		if have, err = a.Attachments(ctx); err != nil {
			return err
		}
		waits := slices.ContainsFunc(units, func(c *candidate) bool {
			smcr, tcp, _ := o.news(have, c)
			return smcr+tcp == 0
		})
		if !waits || !time.Now().Before(end) {
			break
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	progress.Stop()
	announced := o.announced(ctx)
	for _, c := range units {
		smcr, tcp, most := o.news(have, c)
		if smcr+tcp == 0 {
			o.sayAnnounced(c, announced)
			o.say("not verified: %s had no new connection within %v: %s", c.unit.Name, o.wait, c.howToCheck())
			continue
		}
		text := fmt.Sprintf("checked: since then, %s of %s %s SMC-R", number(int(smcr), "connection"), c.unit.Name, one(int(smcr), "uses", "use"))
		if tcp > 0 {
			text += fmt.Sprintf(", %d TCP: %s", tcp, whyTCP(most))
		}
		o.say("%s", text)
	}
	return nil
}

// announced returns the addresses at which the stack announces SMC-R for programs, or nil if it does not answer.
func (o *options) announced(ctx context.Context) map[netip.AddrPort]bool {
	all, err := o.control.Connections(ctx)
	if err != nil {
		return nil // without it, there is less to say
	}
	at := map[netip.AddrPort]bool{}
	for _, c := range all {
		if c.State == smc.StateListen {
			at[cmdutil.Plain(c.Local)] = true
		}
	}
	return at
}

// sayAnnounced says at which addresses of a unit peers find SMC-R announced, and at which they do not. Whether RoCE passes between a peer and this
// host, only a peer can show.
func (o *options) sayAnnounced(c *candidate, announced map[netip.AddrPort]bool) {
	if announced == nil {
		return
	}
	var does, not []string
	for _, p := range c.outer() {
		if announced[cmdutil.Plain(p)] {
			does = append(does, p.String())
		} else {
			not = append(not, p.String())
		}
	}
	if does != nil {
		o.say("checked: the stack announces SMC-R for %s at %s; not checked: whether RoCE passes between a peer and this host", c.unit.Name, strings.Join(does, ", "))
	}
	if not != nil {
		o.say("the stack does not announce SMC-R for %s at %s: 'smcr why %s' says why", c.unit.Name, strings.Join(not, ", "), not[0])
	}
}

// outer returns where a unit listens for other hosts.
func (c *candidate) outer() []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(c.ports), func(p netip.AddrPort) bool { return p.Addr().IsLoopback() })
}

// news returns the connections of a unit since it was enabled.
func (o *options) news(have []nl.Attachment, c *candidate) (smcr, tcp uint64, most nl.Fallback) {
	now, _ := countsOf(have, c.parts)
	return now.since(c.start)
}

// whyTCP is a reason in words, and who says more.
func whyTCP(f nl.Fallback) string {
	if r, ok := reasons.Of(smc.Diagnosis(f.Reason)); ok {
		return fmt.Sprintf("%s (%s)", r.Heading(), r.Hint())
	}
	return cmp.Or(smc.Diagnosis(f.Reason).Text(), fmt.Sprintf("0x%08x", f.Reason))
}

// howToCheck says how to see whether a unit uses SMC-R.
func (c *candidate) howToCheck() string {
	status := fmt.Sprintf("'smcr service status %s'", short(c.unit.Name))
	outer := c.outer()
	switch {
	case len(outer) > 0:
		return fmt.Sprintf("try 'smcr check %s' on a peer, and see %s", reachable(outer[0]), status)
	case len(c.ports) > 0:
		return fmt.Sprintf("it listens only at %v, which no other host reaches, and connections within a machine are TCP", c.ports[0])
	}
	return fmt.Sprintf("%s counts them", status)
}

// reachable returns how a peer calls a listening address.
func reachable(p netip.AddrPort) string {
	if name, err := os.Hostname(); err == nil && p.Addr().IsUnspecified() {
		return fmt.Sprintf("%s:%d", name, p.Port())
	}
	return cmdutil.Plain(p).String()
}

// look notes the sockets of a unit: where it listens, and how many of its connections are open.
func (o *options) look(c *candidate) {
	ids := map[uint64]bool{}
	for _, p := range c.parts {
		for _, id := range o.sockets.cgroups(p.cgroup) {
			ids[id] = true
		}
	}
	if len(ids) == 0 {
		return
	}
	// Without a list of sockets, there is less to say.
	_ = o.sockets.each(func(_, cgroup uint64, s nl.Connection) {
		switch {
		case !ids[cgroup]:
		case s.State == smc.StateListen:
			if !slices.Contains(c.ports, s.Local) {
				c.ports = append(c.ports, s.Local)
			}
		case s.State == smc.StateActive && !s.Remote.Addr().IsLoopback() && s.Remote.Addr() != s.Local.Addr():
			c.open++
		}
	})
	slices.SortFunc(c.ports, netip.AddrPort.Compare)
}

// sayBoot says what is missing for the time after the next boot.
func (o *options) sayBoot(ctx context.Context) {
	unit := o.stackUnit()
	if unit == "" {
		return
	}
	props, err := o.systemd.show(ctx, unit, "LoadState", "UnitFileState")
	switch {
	case err != nil:
	case props["LoadState"] == "not-found":
		o.say("there is no unit %s: after the next boot, something else must start the stack ('smcr serve')", unit)
	case props["UnitFileState"] == "disabled":
		o.say("after the next boot, there is no stack, as %s is disabled: 'systemctl enable --now %s'", unit, short(unit))
	}
}

// netnsDir has the network namespaces that ip-netns(8) has made, by their names.
const netnsDir = "/run/netns"

// stackUnit returns the unit of the stack of this network namespace, or "" if that is none of the machine itself.
func stackUnit() string {
	if here("/proc/1/ns/net") {
		return "smcr.service"
	}
	all, _ := os.ReadDir(netnsDir)
	for _, e := range all {
		if here(path.Join(netnsDir, e.Name())) {
			return "smcr@" + e.Name() + ".service"
		}
	}
	return ""
}

// say prints a line for the administrator.
func (o *options) say(format string, args ...any) {
	o.IO.Printing()
	printable.Fprintf(o.IO.ErrOut, "smcr: "+format+"\n", args...)
}

// short returns the name of a unit as users write it.
func short(unit string) string { return strings.TrimSuffix(unit, ".service") }

// number returns a number of things in words.
func number(n int, thing string) string { return fmt.Sprintf("%d %s", n, one(n, thing, thing+"s")) }

// one returns the word for a number.
func one(n int, single, more string) string {
	if n == 1 {
		return single
	}
	return more
}
