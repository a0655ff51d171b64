// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"strings"

	"smcr/internal/printable"
	"smcr/smc"
)

// count returns a number with a noun.
func count[N int | uint32 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Rate returns a number of bytes per second with a unit: three digits, or all that are
// before the point.
func Rate(perSecond uint64) string {
	const unit = 1024
	if perSecond < unit {
		return fmt.Sprintf("%d B/s", perSecond)
	}
	v, names := float64(perSecond), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for v >= unit-0.5 && i < len(names)-1 {
		v /= unit
		i++
	}
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f %s/s", v, names[i])
	case v < 99.95:
		return fmt.Sprintf("%.1f %s/s", v, names[i])
	}
	return fmt.Sprintf("%.0f %s/s", v, names[i])
}

// idle stands for rates of zero.
const idle = "idle"

// both returns both rates, or "" if they are not known.
func (r *Rates) both() string {
	switch {
	case r == nil:
		return ""
	case *r == (Rates{}):
		return idle
	}
	return "sent " + Rate(r.Sent) + ", received " + Rate(r.Received)
}

// short returns both rates with arrows, for little room.
func (r *Rates) short() string {
	switch {
	case r == nil:
		return ""
	case *r == (Rates{}):
		return idle
	}
	return "↑ " + Rate(r.Sent) + " ↓ " + Rate(r.Received)
}

// title returns the name of a host with its stack.
func (s *Stack) title() string { return printable.Line(s.Host) }

// about returns what a stack is.
func (s *Stack) about() string {
	text := s.Name + " stack"
	if s.Software != "" {
		text += ", " + s.Software
	}
	return printable.Line(fmt.Sprintf("%s, SMC %d.%d", text, s.Version, s.Release))
}

// carried returns how many connections a stack has, by what carries them. Kinds without
// connections are left out, except for SMC-R.
func (s *Stack) carried() string {
	parts := []string{fmt.Sprintf("%d over SMC-R", s.Conns.SMCR)}
	for _, k := range []struct {
		n    int
		kind string
	}{{s.Conns.SMCD, "over SMC-D"}, {s.Conns.TCP, "became TCP"}} {
		if k.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", k.n, k.kind))
		}
	}
	return strings.Join(parts, ", ")
}

// labels returns the two lines at the top of a peer: its name and address, or its address
// and "".
func (p *Peer) labels() (first, second string) {
	if p.Host == "" || p.Host == p.Address {
		return p.Address, ""
	}
	return p.Host, p.Address
}

// name returns the name and address of a peer.
func (p *Peer) name() string {
	first, second := p.labels()
	if second != "" {
		first += " (" + second + ")"
	}
	return printable.Line(first)
}

// about returns what a link group is.
func (g *Group) about() string {
	role := "client"
	if g.Role == smc.Server.Short() {
		role = "server"
	}
	text := fmt.Sprintf("%s, SMC v%d, %s", role, g.Version, g.Type)
	if g.VLAN != 0 {
		text += fmt.Sprintf(", VLAN %d", g.VLAN)
	}
	if g.PNETID != "" {
		text += ", pnetid " + g.PNETID
	}
	return printable.Line(text)
}

// rdma returns the name and number of a port of a RoCE device.
func rdma(dev string, port int) string {
	if dev == "" {
		return "-"
	}
	return printable.Line(fmt.Sprintf("%s/%d", dev, port))
}

// or returns a text that is safe to print, or "-" if it is empty.
func or(s string) string {
	if s == "" {
		return "-"
	}
	return printable.Line(s)
}
