// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"slices"
	"strings"

	"smcr/internal/printable"
)

// A Layout is the form of an SVG image.
type Layout int

// The layouts.
const (
	Wide   Layout = iota // 1000 pixels: the host at the left, the peers at the right
	Narrow               // 360 pixels: the host above, the peers below
)

// Widths of the layouts in pixels.
const (
	wideWidth   = 1000
	narrowWidth = 360
)

// SVG draws stacks as an image. It draws at most so many link groups of each stack.
//
// The image has a title and a description for those who do not see it. States are shapes
// and words, colours only repeat them. The elements have classes (ground, host, card, ink,
// strong, muted, wire, active, activating, inactive, dot, ring, cross) with which a page
// that shows the image can change its colours.
func SVG(stacks []Stack, layout Layout, groups int) []byte {
	limited := make([]Stack, len(stacks))
	for i := range stacks {
		limited[i] = Limit(stacks[i], groups)
	}
	var p pen
	width, y := wideWidth, 0
	for i := range limited {
		if i > 0 {
			y += 24
		}
		if layout == Narrow {
			width = narrowWidth
			y = limited[i].narrow(&p, y)
		} else {
			y = limited[i].wide(&p, y)
		}
	}
	y = max(y, 1)
	var head pen
	head.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 %d %d" width="%d" height="%d" role="img" `+
		`aria-labelledby="smc-title smc-desc" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif">`+"\n", width+4, y+4, width+4, y+4)
	head.printf("<title id=\"smc-title\">%s</title>\n<desc id=\"smc-desc\">%s</desc>\n", escape(titleOf(limited)), escape(describe(limited)))
	head.printf(`<rect %s x="-2" y="-2" width="%d" height="%d"/>`+"\n", class("ground"), width+4, y+4)
	head.b.Write(p.b.Bytes())
	head.printf("</svg>\n")
	return head.b.Bytes()
}

func titleOf(stacks []Stack) string {
	var hosts []string
	for i := range stacks {
		if h := stacks[i].title(); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	return "SMC on " + strings.Join(hosts, ", ")
}

// describe says in words what the image shows.
func describe(stacks []Stack) string {
	var b strings.Builder
	for i := range stacks {
		s := &stacks[i]
		groups, links := 0, map[string]int{}
		var troubled []string
		for j := range s.Peers {
			p := &s.Peers[j]
			groups += len(p.Groups)
			for k := range p.Groups {
				for _, l := range linksOf(&p.Groups[k]) {
					links[look(l.State)]++
					if l.State != linkActive {
						troubled = append(troubled, fmt.Sprintf("link %d of link group %s to %s is %s", l.ID, p.Groups[k].ID, p.name(), l.State))
					}
				}
			}
		}
		fmt.Fprintf(&b, "%s: %s. Connections now: %s. %s to %s, %s.", s.title(), s.about(), s.carried(),
			count(groups, "link group"), count(len(s.Peers), "peer"), count(links["active"], "active link"))
		for _, t := range troubled {
			fmt.Fprintf(&b, " %s.", upper(t))
		}
		for _, p := range s.Devices {
			if p.State != portActive {
				fmt.Fprintf(&b, " Port %s of %s is %s.", rdma(p.IBDev, p.IBPort), or(p.NetDev), p.State)
			}
		}
		if s.Omitted != nil {
			fmt.Fprintf(&b, " %s.", s.Omitted)
		}
		if i < len(stacks)-1 {
			b.WriteString(" ")
		}
	}
	return b.String()
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// Sizes of the parts in pixels.
const (
	pad        = 12
	gap        = 16 // between cards
	groupHead  = 64 // of a card, above its links
	linkRow    = 24
	portHeight = 60
)

// headLines are the lines at the top of the box of a host.
func (s *Stack) headLines(perLine int) (lines []string) {
	lines = wrap(s.about(), perLine)
	lines = append(lines, wrap("Connections now: "+s.carried(), perLine)...)
	if s.Rates != nil {
		lines = append(lines, s.Rates.short())
	}
	return lines
}

// wrap breaks a text between words into lines of about so many characters.
func wrap(s string, n int) (lines []string) {
	line := ""
	for w := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = w
		case len([]rune(line))+1+len([]rune(w)) > n:
			lines = append(lines, line)
			line = w
		default:
			line += " " + w
		}
	}
	return append(lines, line)
}

// conns returns the connections and rates of a link group for the head of its card.
func (g *Group) conns() string {
	text := count(g.Conns, "connection")
	if g.Rates != nil {
		text += ", " + g.Rates.short()
	}
	return text
}

// cardHeight returns the height of the card of a link group.
func cardHeight(g *Group, row int) int { return groupHead + max(len(linksOf(g)), 1)*row + 6 }

// portLine returns the second line of a port.
func (p *Port) portLine() string {
	text := rdma(p.IBDev, p.IBPort)
	if p.PNETID != "" {
		text += ", " + or(p.PNETID)
	}
	return printable.Line(text)
}

// portRates returns the third line of a port.
func (p *Port) portRates() string {
	if p.Rates == nil {
		return count(p.Links, "link")
	}
	return p.Rates.short()
}
