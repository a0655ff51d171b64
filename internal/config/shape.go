// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A kind describes the valid values of a key.
type kind struct {
	rule string                // the message for an invalid value
	ok   func(*yaml.Node) bool // whether a value is valid; nil accepts all
	// item describes the elements of a list, and keys the keys of a mapping.
	item *kind
	keys map[string]kind
}

func isList(n *yaml.Node) bool { return n.Kind == yaml.SequenceNode }

func isMap(n *yaml.Node) bool { return n.Kind == yaml.MappingNode }

// decodes reports whether a value is a T as the decoder sees it.
func decodes[T any](n *yaml.Node) bool { return n.Decode(new(T)) == nil }

// root describes a valid file.
var root = kind{
	rule: `the file must consist of keys and values, for example "ueids: [MY-EID]"`, ok: isMap,
	keys: map[string]kind{
		"pnetids": {
			rule: "pnetids must be a list, for example [{pnetid: NET1, netdev: eth0}]", ok: isList,
			item: &kind{
				rule: "each entry of pnetids must consist of keys and values, for example {pnetid: NET1, netdev: eth0}", ok: isMap,
				keys: map[string]kind{
					"pnetid": {rule: "pnetid must be a word, for example NET1", ok: decodes[string]},
					"netdev": {rule: "netdev must be a word, for example eth0", ok: decodes[string]},
					"ibdev":  {rule: "ibdev must be a word, for example mlx5_0", ok: decodes[string]},
					"ibport": {rule: "ibport must be a port number, 1 or 2", ok: decodes[uint8]},
				},
			},
		},
		"ueids": {
			rule: "ueids must be a list, for example [MY-EID]", ok: isList,
			item: &kind{rule: "each entry of ueids must be a word, for example MY-EID", ok: decodes[string]},
		},
		"seid":                 {rule: "seid must be true or false", ok: decodes[bool]},
		"handshake_limitation": {rule: "handshake_limitation must be true or false", ok: decodes[bool]},
		"programs": {
			rule: "programs must be a list, for example [{cgroup: /system.slice/nginx.service}]", ok: isList,
			item: &kind{
				rule: "each entry of programs must consist of keys and values, for example {cgroup: /system.slice/nginx.service}", ok: isMap,
				keys: map[string]kind{
					"cgroup":  {rule: "cgroup must be a path, for example /system.slice/nginx.service", ok: decodes[string]},
					"connect": {rule: "connect must be true or false", ok: decodes[bool]},
					"accept":  {rule: "accept must be true or false", ok: decodes[bool]},
					"adapt":   {rule: "adapt must be true or false", ok: decodes[bool]},
				},
			},
		},
	},
}

// check returns the errors of n, which must be of kind k.
func (k kind) check(n *yaml.Node) (out Errors) {
	line := n.Line
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Tag == "!!null":
		return nil // another check reports it
	case !k.ok(n):
		return Errors{{Line: line, Text: k.rule}}
	case k.item != nil:
		for _, x := range n.Content {
			out = append(out, k.item.check(x)...)
		}
	case k.keys != nil:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if v, ok := k.keys[n.Content[i].Value]; ok {
				out = append(out, v.check(n.Content[i+1])...)
			}
		}
	}
	return out
}

// wrongKinds replaces the decoder's messages about values of a wrong kind, which use
// terms of YAML, by messages that name the key and its valid values.
func wrongKinds(errs Errors, b []byte) Errors {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil || len(doc.Content) == 0 {
		return errs
	}
	wrong := root.check(doc.Content[0])
	if len(wrong) == 0 {
		return errs
	}
	out := slices.DeleteFunc(slices.Clone(errs), func(e *Error) bool { return strings.HasPrefix(e.Text, "cannot unmarshal ") })
	out = append(out, wrong...)
	slices.SortStableFunc(out, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	return out
}
