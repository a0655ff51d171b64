// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/userstack/wire"
)

// waiting records where the tasks of both kernels in SMC wait: their functions of SMC,
// the innermost first.
func (p *pair) waiting(t *testing.T) {
	t.Helper()
	for _, who := range []string{"client", "server"} {
		stacks := map[string][]string{}
		// A task may end before its file is read.
		out := p.side(who).run(t, "sh", "-c", "grep -He '[ ]smc' /proc/[0-9]*/task/[0-9]*/stack 2>/dev/null || true")
		for line := range strings.Lines(out) {
			file, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			_, function, _ := strings.Cut(rest, " ")
			function, _, _ = strings.Cut(function, "+")
			stacks[filepath.Dir(file)] = append(stacks[filepath.Dir(file)], function)
		}
		maps.DeleteFunc(stacks, func(_ string, functions []string) bool { return slices.Equal(functions, []string{"smc_accept"}) })
		for _, task := range slices.Sorted(maps.Keys(stacks)) {
			name := strings.TrimSpace(p.side(who).run(t, "sh", "-c", "cat "+task+"/comm 2>/dev/null || true"))
			p.record("  %s: %s waits in %s", who, name, strings.Join(stacks[task], " < "))
		}
		t.Logf("%s: %s%s", who, p.side(who).run(t, "rdma", "resource", "show", "qp"), p.side(who).run(t, "rdma", "statistic", "show"))
	}
}

// serverOutput returns the output of a server's program.
func serverOutput(r guest.Result) string {
	lines := strings.Split(strings.TrimSpace(strings.Replace(r.Stdout, "listening\n", "", 1)), "\n")
	slices.Sort(lines)
	return cmp.Or(strings.Join(lines, ", "), "nothing")
}

// kernelErrors records what the kernels log about errors, and connections that do not end
// on one of the sides.
func (p *pair) kernelErrors(t *testing.T) {
	t.Helper()
	for _, who := range []string{"client", "server"} {
		s := p.side(who)
		if _, ok := within(10*time.Second, func() bool { return len(active(t, s)) == 0 }); !ok {
			p.record("%s: %d connections are left", who, len(active(t, s)))
		}
		if x := stats(t, s).Fallbacks; x.Client != 0 || x.Server != 0 {
			p.record("%s: fallbacks %+v", who, x)
		}
		for line := range strings.Lines(s.run(t, "dmesg", "-t")) {
			if strings.Contains(line, "WARNING:") || strings.Contains(line, "BUG:") || strings.Contains(line, "Oops") || strings.Contains(line, "blocked for more") {
				p.record("%s: kernel: %s", who, strings.TrimSpace(line))
			}
		}
	}
}

// panics returns the output of guests about a panic of their kernels.
func (p *pair) panics() string {
	text := ""
	for _, who := range []string{"client", "server"} {
		lines := strings.Split(p.side(who).Console(), "\n")
		last := slices.IndexFunc(lines, func(s string) bool { return strings.Contains(s, "Kernel panic") })
		if last < 0 {
			continue
		}
		text += ": " + who + ": " + strings.TrimSpace(lines[last])
		for _, s := range slices.Backward(lines[:last]) {
			if _, rip, ok := strings.Cut(s, "RIP: "); ok {
				text += ", RIP " + strings.TrimSpace(rip)
				break
			}
		}
	}
	return text
}

// linkMessages returns the messages about links after a position in the capture, and the
// number of failover validations of each side.
func (p *pair) linkMessages(t *testing.T, from int64) (list []frame, validations map[string]int) {
	t.Helper()
	validations = map[string]int{}
	for _, f := range p.messages.since(t, from) {
		switch f.llc.(type) {
		case wire.AddLink, wire.DeleteLink, wire.ConfirmLink, wire.ReqAddLink:
			list = append(list, f)
		}
		if f.cdc != nil && f.cdc.Flags&wire.ProdFailoverVerify != 0 {
			validations[p.sender(f)]++
		}
	}
	return list, validations
}

// sender returns the name of the side that sent a frame.
func (p *pair) sender(f frame) string {
	for i := range 2 {
		if f.from.String() == addrOf(p.client.addr, i) {
			return "client"
		}
	}
	return "server"
}

// wire records the messages about links, with the seconds since a time.
func (p *pair) wire(t *testing.T, from int64, since time.Time) {
	t.Helper()
	list, validations := p.linkMessages(t, from)
	var text []string
	for _, f := range list {
		s := fmt.Sprintf("%.2f %s %v", f.at.Sub(since.Add(p.ahead)).Seconds(), p.sender(f), f)
		switch m := f.llc.(type) {
		case wire.DeleteLink:
			s += fmt.Sprintf(" %d (%v)", m.LinkNum, m.Reason)
			if m.All {
				s += " all"
			}
		case wire.AddLink:
			s += fmt.Sprintf(" %d", m.LinkNum)
			if m.Rejected {
				s += " rejected"
			}
		case wire.ConfirmLink:
			s += fmt.Sprintf(" %d", m.LinkNum)
		}
		text = append(text, s)
	}
	p.record("messages, seconds after it went down: %s", cmp.Or(strings.Join(text, ", "), "none"))
	p.record("failover validations: client %d, server %d", validations["client"], validations["server"])
}

// answers records how long each DELETE LINK was not answered.
func (p *pair) answers(t *testing.T, from int64) {
	t.Helper()
	list, validations := p.linkMessages(t, from)
	took := map[string][]string{}
	for i, f := range list {
		m, ok := f.llc.(wire.DeleteLink)
		if !ok || m.Reply {
			continue
		}
		answer := "none"
		for _, g := range list[i+1:] {
			r, ok := g.llc.(wire.DeleteLink)
			// The server answers with a request.
			if ok && p.sender(g) != p.sender(f) && (r.Reply || p.sender(g) == "server") && r.LinkNum == m.LinkNum {
				answer = fmt.Sprintf("%.2f", g.at.Sub(f.at).Seconds())
				break
			}
		}
		took[p.sender(f)] = append(took[p.sender(f)], answer)
	}
	for _, who := range []string{"client", "server"} {
		p.record("seconds to the answer of the %s's DELETE LINK: %s", who, cmp.Or(strings.Join(took[who], " "), "none sent"))
	}
	p.record("failover validations: client %d, server %d", validations["client"], validations["server"])
}
