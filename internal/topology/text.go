// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Text draws stacks as lines of text: the ports of each stack, then the peers with their
// link groups and links. It draws at most so many link groups of each stack.
func Text(stacks []Stack, groups int) []byte {
	var b bytes.Buffer
	for i := range stacks {
		if i > 0 {
			b.WriteByte('\n')
		}
		s := Limit(stacks[i], groups)
		s.text(&b)
	}
	return b.Bytes()
}

func (s *Stack) text(b *bytes.Buffer) {
	fmt.Fprintf(b, "%s: %s\n", s.title(), s.about())
	line := "connections: " + s.carried()
	if r := s.Rates.both(); r != "" {
		line += "; " + r
	}
	fmt.Fprintf(b, "%s\n", line)
	ports := make([][]string, 0, len(s.Devices))
	for _, p := range s.Devices {
		ports = append(ports, []string{
			"  " + or(p.NetDev), rdma(p.IBDev, p.IBPort), p.State, count(p.Links, "link"), strings.Join(p.details(), ", "),
		})
	}
	aligned(b, ports)
	for i := range s.Peers {
		s.Peers[i].text(b)
	}
	if len(s.Peers) == 0 {
		b.WriteString("no link groups\n")
	}
	if s.Omitted != nil {
		fmt.Fprintf(b, "%s\n", s.Omitted)
	}
}

// details returns what is not in a column of its own.
func (p *Port) details() (words []string) {
	if p.PNETID != "" {
		words = append(words, "pnetid "+or(p.PNETID))
	}
	if p.Critical {
		words = append(words, "critical")
	}
	if r := p.Rates.both(); r != "" {
		words = append(words, r)
	}
	return words
}

func (p *Peer) text(b *bytes.Buffer) {
	fmt.Fprintf(b, "|\n+-- %s\n", p.name())
	for i := range p.Groups {
		g := &p.Groups[i]
		line := fmt.Sprintf("|   link group %s: %s, %s", g.ID, g.about(), count(g.Conns, "connection"))
		if r := g.Rates.both(); r != "" {
			line += "; " + r
		}
		fmt.Fprintf(b, "%s\n", line)
		var links [][]string
		for _, l := range linksOf(g) {
			links = append(links, []string{
				fmt.Sprintf("|     link %d", l.ID), or(l.NetDev), rdma(l.IBDev, int(l.IBPort)), strokes(l.State), or(l.PeerGID), l.State,
				count(l.Conns, "connection"), l.Rates.both(),
			})
		}
		aligned(b, links)
		if len(links) == 0 {
			b.WriteString("|     no links\n")
		}
	}
}

// strokes draws a link in its state.
func strokes(state string) string {
	switch state {
	case linkActive:
		return "=========="
	case linkActivating:
		return "- - - - - "
	}
	return "    x     "
}

// aligned writes rows with columns of equal width.
func aligned(b *bytes.Buffer, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
