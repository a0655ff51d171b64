// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Locate notes in an [ApplyError], if err is one, which entry of the files of the configuration the stack has refused, and reports whether
// it is known. It is not for a change that no file asks for, such as the removal of what is in none of them.
func Locate(err error, files []File) bool {
	var failed *ApplyError
	if !errors.As(err, &failed) {
		return false
	}
	failed.Where = failed.of.where(files)
	return failed.Where != ""
}

// An Unused is an entry that a stack cannot use.
type Unused struct {
	Text string // why, in one line
	of   Change // without a device, enterprise ID or cgroup: the whole section
}

// Where returns "FILE: line N" of the entry in the files of the configuration, or "" if it is in none of them.
func (u Unused) Where(files []File) string { return u.of.where(files) }

// where returns "FILE: line N" of the entry that asks for a change. If several files have one, it is that of the last one, as in [Merge].
func (c Change) where(files []File) string {
	if c.Action == Remove {
		return ""
	}
	for i := len(files) - 1; i >= 0; i-- {
		_, p, err := parseFile(files[i].Text)
		if err != nil {
			continue
		}
		if line := c.line(p); line > 0 {
			return fmt.Sprintf("%s: line %d", files[i].Path, line)
		}
	}
	return ""
}

// line returns the line of the entry in one file, or 0.
func (c Change) line(p *parser) int {
	key := map[string]string{"pnetid": "pnetids", "ueid": "ueids", "program": "programs"}[c.Object]
	if key == "" {
		return p.line(c.Object, -1)
	}
	list := p.find(key)
	if list != nil && list.Kind == yaml.AliasNode {
		list = list.Alias
	}
	switch {
	case list == nil:
		return 0
	case c == Change{Object: c.Object}:
		return list.Line
	}
	for i, n := range list.Content {
		if c.is(n) {
			return p.line(key, i)
		}
	}
	return 0
}

// is reports whether n is the entry of the device, enterprise ID or cgroup of the change.
func (c Change) is(n *yaml.Node) bool {
	switch c.Object {
	case "ueid":
		var id string
		return n.Decode(&id) == nil && strings.TrimRight(id, " ") == c.Value
	case "program":
		var e program
		return n.Decode(&e) == nil && e.Cgroup == c.Program.Cgroup
	}
	var e entry
	return n.Decode(&e) == nil && (c.PNET.NetDev != "" && e.NetDev == c.PNET.NetDev || c.PNET.IBDev != "" && e.IBDev == c.PNET.IBDev)
}
