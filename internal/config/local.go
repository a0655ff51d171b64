// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxLocalJoin is the largest number of entries of LocalJoin.
const MaxLocalJoin = 32

// maxProgram is the largest length of the name of a program, in bytes: that of a file.
const maxProgram = 64

// A LocalJoin is an entry of local.join: connections within the machine between the programs
// that it matches are joined directly, as with 'smcr run --local'. It matches if all that it
// names match, and names at least one thing.
type LocalJoin struct {
	Program string       // base name of the program; "": any
	Port    uint16       // of the server; 0: any
	Prefix  netip.Prefix // contains the address of the server; the zero value: any
}

// local is the YAML form of the section.
type local struct {
	Join []joined `yaml:"join"`
}

type joined struct {
	Program string  `yaml:"program,omitempty" json:"program,omitempty"`
	Port    *uint16 `yaml:"port,omitempty" json:"port,omitempty"`
	Prefix  string  `yaml:"prefix,omitempty" json:"prefix,omitempty"`
}

func joinedOf(list []LocalJoin) []joined {
	out := []joined{}
	for _, x := range list {
		e := joined{Program: x.Program}
		if x.Port != 0 {
			e.Port = &x.Port
		}
		if x.Prefix.IsValid() {
			e.Prefix = x.Prefix.String()
		}
		out = append(out, e)
	}
	return out
}

// joins checks the entries of local.join. They are not nil if the section exists.
func (p *parser) joins(entries []joined) []LocalJoin {
	list := value(p.find("local"), "join")
	if list == nil || list.Tag == "!!null" {
		p.fail(p.line("local", -1), "local has no join: remove the section, or write {join: []} for an empty list")
		return nil
	}
	line := func(i int) int {
		if i < len(list.Content) {
			return list.Content[i].Line
		}
		return list.Line
	}
	out := []LocalJoin{}
	for i, e := range entries {
		x := LocalJoin{Program: e.Program}
		switch {
		case e == joined{}:
			p.fail(line(i), "the entry of join names nothing: name a program, a port or a prefix")
			continue
		case len(e.Program) > maxProgram:
			p.fail(line(i), "program: the name has at most %d characters", maxProgram)
			continue
		case strings.ContainsFunc(e.Program, func(r rune) bool { return r <= ' ' || r == '/' || r == 0x7f }):
			p.fail(line(i), "program %q: write the name of the file, without directories, spaces and arguments", e.Program)
			continue
		case e.Port != nil && *e.Port == 0:
			p.fail(line(i), "port 0: a port is a number from 1 to 65535")
			continue
		case e.Port != nil:
			x.Port = *e.Port
		}
		if e.Prefix != "" {
			prefix, err := netip.ParsePrefix(e.Prefix)
			switch {
			case err != nil || prefix.Addr().Is4In6():
				p.fail(line(i), "prefix %q: write an address and a length, for example 10.0.0.0/8 or fd00::/8", e.Prefix)
				continue
			case prefix != prefix.Masked():
				p.fail(line(i), "prefix %s: the address has bits behind the length: did you mean %s?", e.Prefix, prefix.Masked())
				continue
			}
			x.Prefix = prefix
		}
		if slices.Contains(out, x) {
			p.fail(line(i), "the same entry is already listed above")
			continue
		}
		out = append(out, x)
	}
	if len(entries) > MaxLocalJoin {
		p.fail(line(MaxLocalJoin), "%d entries of join: a stack holds at most %d", len(entries), MaxLocalJoin)
	}
	return out
}

// value returns the value of a key of a mapping, or nil.
func value(n *yaml.Node, key string) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != key {
			continue
		}
		v := n.Content[i+1]
		if v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		return v
	}
	return nil
}

// FormatLocalJoin returns the text of a list for [smcr/nl.SysInfo], "" if it is empty.
func FormatLocalJoin(list []LocalJoin) string {
	if len(list) == 0 {
		return ""
	}
	b, err := json.Marshal(joinedOf(list))
	if err != nil {
		return "" // no value of the type has this error
	}
	return string(b)
}

// parseLocalJoin is the inverse of FormatLocalJoin. JSON is YAML, so that the text of a stack
// is checked as a file is.
func parseLocalJoin(s string) ([]LocalJoin, error) {
	if s == "" {
		return nil, nil
	}
	c, err := Parse([]byte("local: {join: " + s + "}"))
	if err != nil {
		return nil, fmt.Errorf("config: the list local.join of the stack: %w", err)
	}
	return c.LocalJoin, nil
}
