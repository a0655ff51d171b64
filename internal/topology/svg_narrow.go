// SPDX-License-Identifier: Apache-2.0

package topology

import "fmt"

// Positions in the narrow layout in pixels.
const (
	trunkX     = 12 // of the line from the host down to its peers
	branchX    = 28 // left side of the peers
	narrowRow  = 42 // of a link: two lines
	narrowPort = 44 // of a port: two lines
)

// narrow draws a stack from the position y and returns the position below it.
func (s *Stack) narrow(p *pen, top int) int {
	lines := s.headLines(50)
	bottom := top + pad + lineStep + len(lines)*lineStep + 4
	portsTop := bottom
	bottom += max(len(s.Devices)*narrowPort, lineStep) + 6
	var tops []int
	y := bottom + gap
	for i := range s.Peers {
		tops = append(tops, y)
		y += s.Peers[i].narrowHeight() + gap
	}
	if n := len(tops); n > 0 {
		p.printf(`<path %s d="M%d %dV%d"/>`+"\n", class("wire"), trunkX, bottom, tops[n-1]+20)
		for _, t := range tops {
			p.printf(`<path %s d="M%d %dH%d"/>`+"\n", class("wire"), trunkX, t+20, branchX)
		}
	}
	p.box("host", 0, top, narrowWidth, bottom-top)
	p.text("strong", pad, top+20, narrowWidth-2*pad, "start", s.title())
	for i, l := range lines {
		p.text("muted", pad, top+20+(i+1)*lineStep, narrowWidth-2*pad, "start", l)
	}
	for i := range s.Devices {
		s.Devices[i].narrow(p, portsTop+i*narrowPort)
	}
	if len(s.Devices) == 0 {
		p.text("muted", pad, portsTop+14, narrowWidth-2*pad, "start", "no RoCE devices")
	}
	for i := range s.Peers {
		s.Peers[i].narrow(p, tops[i])
	}
	if len(s.Peers) == 0 {
		p.text("muted", pad, y+6, narrowWidth, "start", "no link groups")
		y += lineStep
	}
	if s.Omitted != nil {
		for _, l := range wrap(s.Omitted.String(), 46) {
			p.text("muted", branchX, y+4, narrowWidth-branchX, "start", l)
			y += lineStep
		}
	}
	return y
}

// narrow draws a port.
func (d *Port) narrow(p *pen, y int) {
	p.box("card", 8, y, narrowWidth-16, narrowPort-6)
	p.state(d.State, 22, y+13)
	p.text("strong", 36, y+17, 200, "start", or(d.NetDev))
	p.text("muted", narrowWidth-18, y+17, 80, "end", d.State)
	p.text("muted", 36, y+32, 120, "start", d.portLine())
	p.text("muted", narrowWidth-18, y+32, 180, "end", d.portRates())
}

// narrowHead returns the height of a peer above its link groups.
func (p *Peer) narrowHead() int {
	if _, second := p.labels(); second == "" {
		return 28
	}
	return 46
}

func (p *Peer) narrowHeight() int {
	h := p.narrowHead()
	for i := range p.Groups {
		h += cardHeight(&p.Groups[i], narrowRow) + 8
	}
	return h + 2
}

// narrow draws a peer with its link groups.
func (p *Peer) narrow(pen *pen, top int) {
	const w = narrowWidth - branchX
	pen.box("host", branchX, top, w, p.narrowHeight())
	name, below := p.labels()
	pen.text("strong", branchX+pad, top+18, w-2*pad, "start", name)
	pen.text("muted", branchX+pad, top+18+lineStep-2, w-2*pad, "start", below)
	y := top + p.narrowHead()
	for i := range p.Groups {
		g := &p.Groups[i]
		g.narrow(pen, y)
		y += cardHeight(g, narrowRow) + 8
	}
}

// narrow draws the card of a link group.
func (g *Group) narrow(p *pen, y int) {
	const x, w = branchX + 8, narrowWidth - branchX - 16
	p.box("card", x, y, w, cardHeight(g, narrowRow))
	p.text("strong", x+pad, y+20, w-2*pad, "start", "Link group "+g.ID)
	p.text("muted", x+pad, y+20+lineStep-1, w-2*pad, "start", g.about())
	p.text("muted", x+pad, y+20+2*lineStep-2, w-2*pad, "start", g.conns())
	links := linksOf(g)
	for i, l := range links {
		row := y + groupHead + i*narrowRow
		p.state(l.State, x+14, row+10)
		p.text("ink", x+28, row+14, 150, "start", fmt.Sprintf("link %d %s", l.ID, l.State))
		right := count(l.Conns, "connection")
		if len(links) > 1 && l.Rates != nil {
			right = l.Rates.short()
		}
		p.text("muted", x+w-10, row+14, 165, "end", right)
		p.text("muted", x+28, row+31, w-40, "start", or(l.NetDev)+" to "+or(l.PeerGID))
	}
	if len(links) == 0 {
		p.text("muted", x+pad, y+groupHead+16, w-2*pad, "start", "no links")
	}
}
