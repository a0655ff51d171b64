// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"fmt"
	"slices"
)

// The columns of the wide layout: left side and width in pixels.
const (
	hostX, hostW   = 0, 250
	groupX, groupW = 340, 370
	peerX, peerW   = 790, 210
)

// An end is where a link leaves the card of its link group.
type end struct {
	link  *Link
	y     int
	shown bool // the port of the link is drawn
}

// wide draws a stack from the position y and returns the position below it.
func (s *Stack) wide(p *pen, top int) int {
	lines := s.headLines(33)
	headBottom := top + pad + lineStep + len(lines)*lineStep + 8
	ends, bottom := s.wideGroups(top)
	ports := s.placePorts(ends, headBottom)
	height := max(bottom, headBottom)
	if n := len(ports); n > 0 {
		height = max(height, ports[n-1].y+portHeight+pad)
	}
	p.box("host", hostX, top, hostW, height-top)
	// Lines first, cards over them.
	for i := range ends {
		e := &ends[i]
		for _, port := range ports {
			if port.port.IBDev == e.link.IBDev && port.port.IBPort == int(e.link.IBPort) {
				p.curve(look(e.link.State), hostX+hostW-pad, port.y+portHeight/2, groupX, e.y)
				e.shown = true
			}
		}
		if !e.shown {
			p.curve(look(e.link.State), hostX+hostW, e.y, groupX, e.y)
		}
		p.curve(look(e.link.State), groupX+groupW, e.y, peerX, e.y)
	}
	y := top + pad + 4
	p.text("strong", hostX+pad, y+4, hostW-2*pad, "start", s.title())
	for _, l := range lines {
		y += lineStep
		p.text("muted", hostX+pad, y+4, hostW-2*pad, "start", l)
	}
	for _, port := range ports {
		port.port.wide(p, port.y)
	}
	if len(s.Devices) == 0 {
		p.text("muted", hostX+pad, y+lineStep+4, hostW-2*pad, "start", "no RoCE devices")
	}
	y = top
	for i := range s.Peers {
		y = s.Peers[i].wide(p, y)
	}
	if len(s.Peers) == 0 {
		p.text("muted", groupX, top+2*lineStep, groupW, "start", "no link groups")
	}
	if s.Omitted != nil {
		p.text("muted", groupX, height+lineStep, wideWidth-groupX, "start", s.Omitted.String())
		height += lineStep + 6
	}
	return height
}

// wideGroups returns where the links leave the cards of their link groups, and the bottom
// of the last one.
func (s *Stack) wideGroups(top int) (ends []end, bottom int) {
	y := top
	for i := range s.Peers {
		for j := range s.Peers[i].Groups {
			g := &s.Peers[i].Groups[j]
			links := linksOf(g)
			for k := range links {
				ends = append(ends, end{link: &links[k], y: y + groupHead + k*linkRow + linkRow/2})
			}
			y += cardHeight(g, linkRow) + gap
		}
	}
	return ends, max(y-gap, top)
}

// A placed port is a port with its position.
type placed struct {
	port *Port
	y    int
}

// placePorts places the ports below top, each near its links, so that few lines cross. The
// ports without links come last.
func (s *Stack) placePorts(ends []end, top int) []placed {
	ports := make([]placed, len(s.Devices))
	for i := range s.Devices {
		d := &s.Devices[i]
		ports[i] = placed{port: d, y: 1 << 20}
		sum, n := 0, 0
		for _, e := range ends {
			if e.link.IBDev == d.IBDev && int(e.link.IBPort) == d.IBPort {
				sum += e.y
				n++
			}
		}
		if n > 0 {
			ports[i].y = sum/n - portHeight/2
		}
	}
	slices.SortStableFunc(ports, func(x, y placed) int { return cmp.Compare(x.y, y.y) })
	free := top
	for i := range ports {
		if ports[i].y == 1<<20 {
			ports[i].y = free
		}
		ports[i].y = max(ports[i].y, free)
		free = ports[i].y + portHeight + 10
	}
	return ports
}

// wide draws a port.
func (d *Port) wide(p *pen, y int) {
	x, w := hostX+pad, hostW-2*pad
	p.box("card", x, y, w, portHeight)
	p.state(d.State, x+14, y+17)
	p.text("strong", x+28, y+21, w-28-75, "start", or(d.NetDev))
	p.text("muted", x+w-10, y+21, 70, "end", d.State)
	p.text("muted", x+10, y+21+lineStep-2, w-20, "start", d.portLine())
	p.text("muted", x+10, y+21+2*lineStep-4, w-20, "start", d.portRates())
}

// wide draws a peer with its link groups and returns the position below them.
func (p *Peer) wide(pen *pen, top int) int {
	bottom := top - gap
	for i := range p.Groups {
		bottom += cardHeight(&p.Groups[i], linkRow) + gap
	}
	pen.box("host", peerX, top, peerW, bottom-top)
	name, below := p.labels()
	pen.text("strong", peerX+pad, top+pad+8, peerW-2*pad, "start", name)
	pen.text("muted", peerX+pad, top+pad+8+lineStep, peerW-2*pad, "start", below)
	y := top
	for i := range p.Groups {
		g := &p.Groups[i]
		g.wide(pen, y)
		y += cardHeight(g, linkRow) + gap
	}
	return bottom + gap
}

// wide draws the card of a link group.
func (g *Group) wide(p *pen, y int) {
	p.box("card", groupX, y, groupW, cardHeight(g, linkRow))
	x, w := groupX+pad, groupW-2*pad
	p.text("strong", x, y+20, w, "start", "Link group "+g.ID)
	p.text("muted", x, y+20+lineStep-1, w, "start", g.about())
	p.text("muted", x, y+20+2*lineStep-2, w, "start", g.conns())
	links := linksOf(g)
	for i, l := range links {
		mid := y + groupHead + i*linkRow + linkRow/2
		p.state(l.State, groupX+14, mid)
		p.text("ink", groupX+28, mid+4, 165, "start", fmt.Sprintf("link %d %s", l.ID, l.State))
		right := count(l.Conns, "connection")
		if len(links) > 1 && l.Rates != nil {
			right = l.Rates.short()
		}
		p.text("muted", groupX+groupW-pad, mid+4, 175, "end", right)
		p.text("muted", peerX+pad, mid+4, peerW-2*pad, "start", l.PeerGID)
	}
	if len(links) == 0 {
		p.text("muted", x, y+groupHead+linkRow/2+4, w, "start", "no links")
	}
}
