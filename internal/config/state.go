// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"smcr/nl"

	"gopkg.in/yaml.v3"
)

// A State is what commands changed in a stack since it read its configuration
// file: what the next stack of the network namespace needs to go on from there.
type State struct {
	// File is the digest of the configuration file, or "" if there was none.
	// With another file, the changes are of no meaning.
	File string
	// Namespace is the inode number of the network namespace.
	Namespace uint64
	// Base is what the stack had from the file, Now what it has since the
	// last change. Both have all sections that the stack knows.
	Base, Now *Config
}

// stateFile is the YAML form. Its last key tells a whole file from one that
// was cut.
type stateFile struct {
	File      string    `yaml:"file"`
	Namespace uint64    `yaml:"namespace"`
	Base      yaml.Node `yaml:"base"`
	Now       yaml.Node `yaml:"now"`
	Whole     bool      `yaml:"whole"`
}

const stateComment = `# Changes by commands in the SMC stack of a network namespace. The stack writes
# and reads this file. For your own configuration file, use 'smcr export'.
`

// AppendYAML appends the YAML form of s. Parsing it gives s again.
func (s *State) AppendYAML(b []byte) ([]byte, error) {
	f := stateFile{File: s.File, Namespace: s.Namespace, Whole: true}
	for node, c := range map[*yaml.Node]*Config{&f.Base: s.Base, &f.Now: s.Now} {
		text, err := c.AppendYAML(nil)
		if err == nil {
			err = yaml.Unmarshal(text, node)
		}
		if err != nil {
			return nil, fmt.Errorf("config: state: %w", err)
		}
		if len(node.Content) > 0 {
			*node = *node.Content[0] // out of its document
		} else {
			*node = yaml.Node{Kind: yaml.MappingNode}
		}
	}
	text, err := yaml.Marshal(&f)
	if err != nil {
		return nil, fmt.Errorf("config: state: %w", err)
	}
	return append(append(b, stateComment...), text...), nil
}

// ParseState parses what [State.AppendYAML] writes. The error matches
// [ErrInvalid] for anything else, such as a part of it.
func ParseState(b []byte) (*State, error) {
	if len(b) > MaxSize {
		return nil, Errors{{Text: fmt.Sprintf("the state is larger than %d KiB", MaxSize>>10)}}
	}
	var f stateFile
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	switch err := dec.Decode(&f); {
	case errors.Is(err, io.EOF):
		return nil, Errors{{Text: "the state is empty"}}
	case err != nil:
		return nil, syntax(err)
	case !f.Whole:
		return nil, Errors{{Text: "the end of the state is missing"}}
	}
	s := &State{File: f.File, Namespace: f.Namespace}
	for node, c := range map[*yaml.Node]**Config{&f.Base: &s.Base, &f.Now: &s.Now} {
		text, err := yaml.Marshal(node)
		if err != nil {
			return nil, Errors{{Line: node.Line, Text: err.Error()}}
		}
		if *c, err = Parse(text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Changed reports whether s holds a change.
func (s *State) Changed() bool {
	return !slices.Equal(s.Base.PNETs, s.Now.PNETs) || !slices.Equal(s.Base.UEIDs, s.Now.UEIDs) ||
		!sameFlag(s.Base.SEID, s.Now.SEID) || !sameFlag(s.Base.HSLimitation, s.Now.HSLimitation)
}

// On returns what a stack should have that has live from the same file: live
// with the changes of s. They win where both concern one device.
func (s *State) On(live *Config) *Config {
	c := *live
	if s.Now.PNETs != nil {
		c.PNETs = changed(live.PNETs, s.Base.PNETs, s.Now.PNETs, func(a, b nl.PNET) bool {
			return a.NetDev == b.NetDev && a.IBDev == b.IBDev
		})
	}
	if s.Now.UEIDs != nil {
		c.UEIDs = changed(live.UEIDs, s.Base.UEIDs, s.Now.UEIDs, func(a, b string) bool { return a == b })
		c.UEIDs = c.UEIDs[:min(len(c.UEIDs), nl.MaxUEIDs)]
	}
	if !sameFlag(s.Base.SEID, s.Now.SEID) {
		c.SEID = s.Now.SEID
	}
	if !sameFlag(s.Base.HSLimitation, s.Now.HSLimitation) {
		c.HSLimitation = s.Now.HSLimitation
	}
	return &c
}

// changed returns live without what is in base and not in now, and with what
// is in now and not in base, which replaces what is the same to it.
func changed[T comparable](live, base, now []T, same func(a, b T) bool) []T {
	out := []T{}
	for _, x := range live {
		gone := slices.Contains(base, x) && !slices.Contains(now, x)
		replaced := slices.ContainsFunc(now, func(n T) bool { return same(n, x) && !slices.Contains(base, n) })
		if !gone && !replaced {
			out = append(out, x)
		}
	}
	for _, n := range now {
		if !slices.Contains(base, n) {
			out = append(out, n)
		}
	}
	return out
}

func sameFlag(a, b *bool) bool {
	return a == b || a != nil && b != nil && *a == *b
}
