// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"bytes"
	"fmt"
	"strings"

	"smcr/internal/printable"
)

// DOT draws stacks as a graph in the language of Graphviz: ports, link groups and peers are
// nodes, links are edges. It draws at most so many link groups of each stack.
func DOT(stacks []Stack, groups int) []byte {
	var b bytes.Buffer
	b.WriteString("graph smc {\n" +
		"  rankdir=LR; fontname=\"sans-serif\"; ranksep=1.2;\n" +
		"  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n" +
		"  edge [fontname=\"sans-serif\", fontsize=10];\n")
	for i := range stacks {
		s := Limit(stacks[i], groups)
		s.dot(&b, i)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func (s *Stack) dot(b *bytes.Buffer, n int) {
	fmt.Fprintf(b, "  subgraph cluster_stack%d {\n    label=%s;\n", n, quote(s.title(), s.about(), s.carried(), s.Rates.both()))
	nodes := make(map[portKey]string)
	node := func(dev string, port int, lines ...string) string {
		key := portKey{dev, port}
		if nodes[key] == "" {
			nodes[key] = fmt.Sprintf("s%dport%d", n, len(nodes))
			fmt.Fprintf(b, "    %s [label=%s];\n", nodes[key], quote(lines...))
		}
		return nodes[key]
	}
	for _, p := range s.Devices {
		node(p.IBDev, p.IBPort, or(p.NetDev), rdma(p.IBDev, p.IBPort), p.State, p.Rates.both())
	}
	if len(nodes) == 0 {
		fmt.Fprintf(b, "    s%dnone [label=\"no RoCE devices\", style=dotted];\n", n)
	}
	// A link may name a port that the stack does not list any more.
	for _, p := range s.Peers {
		for i := range p.Groups {
			for _, l := range linksOf(&p.Groups[i]) {
				node(l.IBDev, int(l.IBPort), or(l.NetDev), rdma(l.IBDev, int(l.IBPort)), "not listed")
			}
		}
	}
	b.WriteString("  }\n")
	for i, p := range s.Peers {
		peer := fmt.Sprintf("s%dpeer%d", n, i)
		fmt.Fprintf(b, "  %s [label=%s, shape=box3d, style=\"\"];\n", peer, quote(p.name()))
		for j := range p.Groups {
			g := &p.Groups[j]
			group := fmt.Sprintf("s%dgroup%d_%d", n, i, j)
			fmt.Fprintf(b, "  %s [label=%s];\n", group, quote("link group "+g.ID, g.about(), count(g.Conns, "connection"), g.Rates.both()))
			for _, l := range linksOf(g) {
				fmt.Fprintf(b, "  %s -- %s [style=%s, label=%s];\n", nodes[portKey{l.IBDev, int(l.IBPort)}], group, dotStyle(l.State),
					quote(fmt.Sprintf("link %d %s", l.ID, l.State), count(l.Conns, "connection")))
				fmt.Fprintf(b, "  %s -- %s [style=%s, label=%s];\n", group, peer, dotStyle(l.State), quote(or(l.PeerGID)))
			}
			if len(g.Links) == 0 {
				fmt.Fprintf(b, "  %s -- %s [style=invis];\n", group, peer)
			}
		}
	}
	if s.Omitted != nil {
		fmt.Fprintf(b, "  s%domitted [label=%s, shape=plaintext];\n", n, quote(s.Omitted.String()))
	}
}

func dotStyle(state string) string {
	switch state {
	case linkActive:
		return "bold"
	case linkActivating:
		return "dashed"
	}
	return "dotted"
}

// quote returns a label of the lines that are not empty. In a label of DOT, the quotation
// mark, the backslash and entities of HTML mean something.
func quote(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		if l == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(`\n`)
		}
		b.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`, "&", "&amp;").Replace(printable.Line(l)))
	}
	return `"` + b.String() + `"`
}
