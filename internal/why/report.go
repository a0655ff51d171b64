// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/smc"
)

// group are sockets of which there is the same to say.
type group struct {
	Verdict
	all []*Facts
}

// alike are the properties that sockets of one group have in common.
type alike struct {
	Verdict
	listens, accepted bool
	stack, command    string
	uid               uint32
}

// groups puts sockets together, in the order of the first of each group.
func groups(all []*Facts) (gs []*group) {
	index := map[alike]*group{}
	for _, f := range all {
		v := Decide(f)
		k := alike{v, f.listens(), f.Accepted, f.Stack, command(f), f.Conn.UID}
		g := index[k]
		if g == nil {
			g = &group{Verdict: v}
			index[k], gs = g, append(gs, g)
		}
		g.all = append(g.all, f)
	}
	return gs
}

func command(f *Facts) string {
	if f.Process != nil {
		return f.Process.Command
	}
	return f.Conn.Command
}

// report returns the text about sockets. Without all, one of several that are alike stands for
// these.
func report(facts []*Facts, all bool) string {
	var b strings.Builder
	for i, g := range groups(facts) {
		shown := g.all
		if !all && len(shown) > 2 {
			shown = shown[:1]
		}
		for j, f := range shown {
			if i+j > 0 {
				b.WriteString("\n")
			}
			describe(&b, f, &g.Verdict)
		}
		if rest := g.all[len(shown):]; len(rest) > 0 {
			printable.Fprintf(&b, "\nand %d more like this%s; --all lists them\n", len(rest), together(rest))
		}
	}
	return b.String()
}

// together returns what sockets carry now, if it was measured.
func together(all []*Facts) string {
	var sent, received uint64
	measured := false
	for _, f := range all {
		if s, r, ok := f.Traffic.rates(); ok {
			sent, received, measured = sent+s, received+r, true
		}
	}
	if !measured {
		return ""
	}
	return fmt.Sprintf(", together %s/s out, %s/s in", output.Size(sent), output.Size(received))
}

// joint stands for a blank at which a line does not end.
const joint = "\x01"

// quoted are commands in texts.
var quoted = regexp.MustCompile(`[ (]'[^']+'`)

// describe writes the text about one socket.
func describe(b *strings.Builder, f *Facts, v *Verdict) {
	line := func(name, format string, args ...any) {
		// A line does not end within a command, so that it can be copied.
		text := quoted.ReplaceAllStringFunc(printable.Sprintf(format, args...), func(s string) string {
			return s[:1] + strings.ReplaceAll(s[1:], " ", joint)
		})
		text = output.Wrap(fmt.Sprintf("%-14s", name+":"), text, strings.Repeat(" ", 14))
		b.WriteString(strings.ReplaceAll(text, joint, " ") + "\n")
	}
	c := &f.Conn
	state := ""
	if c.State != smc.StateActive && !f.listens() {
		state = ", state " + c.State.String()
	}
	switch {
	case f.listens():
		line("Listener", "%s", cmdutil.Plain(c.Local).String())
	case f.Accepted:
		line("Connection", "%s, accepted from %s%s", cmdutil.Plain(c.Local).String(), cmdutil.Plain(c.Remote).String(), state)
	default:
		line("Connection", "%s to %s%s", cmdutil.Plain(c.Local).String(), cmdutil.Plain(c.Remote).String(), state)
	}
	line("Process", "%s", processText(f))
	switch {
	case f.listens() && v.Carrier != TCP:
		line("Announces", "%s", v.text())
	case f.listens():
		line("Announces", "nothing: its clients use TCP")
	default:
		line("Carried by", "%s", v.text())
	}
	if c.LinkGroup != 0 {
		line("Link group", "%s", c.LinkGroup.String())
	}
	line("Why", "%s%s", v.Why, v.reason())
	if f.listens() {
		if n := f.Clients; n.SMC+n.TCP > 0 {
			line("Clients", "now %d over SMC, %d over TCP", n.SMC, n.TCP)
		} else {
			line("Clients", "none now")
		}
	}
	if t := f.Traffic; t != nil {
		now := ""
		if s, r, ok := t.rates(); ok {
			now = fmt.Sprintf("; now %s/s out, %s/s in", output.Size(s), output.Size(r))
		}
		line("Traffic", "%s sent, %s received%s", output.Size(t.Sent), output.Size(t.Received), now)
	} else if !f.listens() && v.Carrier != TCP {
		line("Traffic", "not counted for each connection: see 'smcr stats'")
	}
	if r := f.Resent; r != nil {
		line("Sent again", "%s", resentText(r))
	}
	line("To do", "%s%s", v.Advice, v.see())
}

// text returns the carrier, and by what.
func (v *Verdict) text() string {
	if v.Over == "" {
		return string(v.Carrier)
	}
	return string(v.Carrier) + " by " + v.Over
}

// reason returns the codes, in parentheses.
func (v *Verdict) reason() string {
	switch {
	case v.Code != 0 && v.Peer != 0:
		return fmt.Sprintf(" (0x%08x, from the peer 0x%08x)", uint32(v.Code), uint32(v.Peer))
	case v.Code != 0:
		return fmt.Sprintf(" (0x%08x)", uint32(v.Code))
	}
	return ""
}

// see leads to the reason, if there is more to know.
func (v *Verdict) see() string {
	if v.Reason == "" {
		return ""
	}
	return " See 'smcr explain " + v.Reason + "'."
}

func processText(f *Facts) string {
	p := f.Process
	if p == nil {
		owner := "of user " + cmdutil.UserName(f.Conn.UID)
		if f.Conn.Command != "" {
			return fmt.Sprintf("%s, %s", f.Conn.Command, owner)
		}
		if f.Stack == kernel && f.Conn.Inode == 0 && f.Accepted {
			return "none yet: it waits for accept(2)"
		}
		return "not visible, " + owner
	}
	text := fmt.Sprintf("%s, process %d", p.Command, p.PID)
	if f.More > 0 {
		text += fmt.Sprintf(" and %d more", f.More)
	}
	text += ", user " + cmdutil.UserName(p.UID)
	if p.Unit != "" {
		text += ", " + p.Unit
	}
	if p.Container != "" {
		text += ", container " + p.shortContainer()
	}
	switch {
	case p.Part != "":
		text += ", a part of smcr"
	case p.Run:
		text += ", under smcr run"
	case p.Attached:
		text += ", attached"
	}
	return text
}

func resentText(r *Resent) string {
	text := output.Count(r.N, "segment")
	switch {
	case r.Link != 0:
		text = fmt.Sprintf("%s, for all connections of link %d", output.Count(r.N, "packet"), r.Link)
	case r.Device != "":
		text = fmt.Sprintf("%s, for all connections of %s", output.Count(r.N, "packet"), r.Device)
	}
	if r.Time > 0 {
		text += fmt.Sprintf(", %d of them in %v", r.New, r.Time.Round(100*time.Millisecond))
	}
	return text
}
