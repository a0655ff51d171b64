// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"smcr/nl"

	"go.yaml.in/yaml/v3"
)

// A State is what commands have changed in a stack since it read its configuration
// file. The next stack of the network namespace applies these changes too.
type State struct {
	// File is the digest of the configuration file without its programs, or "" if there was nothing in it. The
	// changes are only valid together with this file.
	File string
	// Namespace is the inode number of the network namespace.
	Namespace uint64
	// Base is the configuration from the file, and Now the configuration after
	// the last change. Both have all sections that the stack supports.
	Base, Now *Config
}

// stateFile is the YAML form. The last key shows that the file is complete.
type stateFile struct {
	File      string    `yaml:"file"`
	Namespace uint64    `yaml:"namespace"`
	Base      yaml.Node `yaml:"base"`
	Now       yaml.Node `yaml:"now"`
	// UIDs are the users other than root that have asked for programs of now, by cgroup.
	UIDs  map[string]uint32 `yaml:"uids,omitempty"`
	Whole bool              `yaml:"whole"`
}

const stateComment = `# Changes by commands in the SMC stack of a network namespace. The stack writes
# and reads this file. For your own configuration file, use 'smcr export'.
`

// AppendYAML appends the YAML form of s. ParseState of the result returns s.
func (s *State) AppendYAML(b []byte) ([]byte, error) {
	f := stateFile{File: s.File, Namespace: s.Namespace, UIDs: map[string]uint32{}, Whole: true}
	for _, x := range s.Now.Programs {
		if x.UID != 0 {
			f.UIDs[x.Cgroup] = x.UID
		}
	}
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
	if n := len(stateComment) + len(text); n > MaxSize {
		return nil, fmt.Errorf("config: state: it is larger than %d KiB", MaxSize>>10)
	}
	return append(append(b, stateComment...), text...), nil
}

// ParseState parses the output of [State.AppendYAML]. For anything else, such as a
// truncated file, the error matches [ErrInvalid].
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
	for i, x := range s.Now.Programs {
		s.Now.Programs[i].UID = f.UIDs[x.Cgroup]
	}
	return s, nil
}

// Changed reports whether s holds a change.
func (s *State) Changed() bool {
	return !slices.Equal(s.Base.PNETs, s.Now.PNETs) || !slices.Equal(s.Base.UEIDs, s.Now.UEIDs) ||
		!sameFlag(s.Base.SEID, s.Now.SEID) || !sameFlag(s.Base.HSLimitation, s.Now.HSLimitation) ||
		!slices.EqualFunc(s.Base.Programs, s.Now.Programs, Program.same)
}

// On returns the configuration of a stack that has read live from the same file: live
// with the changes of s. If both concern one device, the changes count. A program that the file has not had, or had otherwise,
// is as it says.
func (s *State) On(live *Config) *Config {
	c := *live
	if s.Now.PNETs != nil {
		c.PNETs = changed(live.PNETs, s.Base.PNETs, s.Now.PNETs, equal, func(a, b nl.PNET) bool {
			return a.NetDev == b.NetDev && a.IBDev == b.IBDev
		})
	}
	if s.Now.UEIDs != nil {
		c.UEIDs = changed(live.UEIDs, s.Base.UEIDs, s.Now.UEIDs, equal, equal)
		c.UEIDs = c.UEIDs[:min(len(c.UEIDs), nl.MaxUEIDs)]
	}
	if !sameFlag(s.Base.SEID, s.Now.SEID) {
		c.SEID = s.Now.SEID
	}
	if !sameFlag(s.Base.HSLimitation, s.Now.HSLimitation) {
		c.HSLimitation = s.Now.HSLimitation
	}
	if s.Now.Programs != nil {
		c.Programs = s.programs(live.Programs)
	}
	return &c
}

// programs is On for the programs of a file.
func (s *State) programs(file []Program) []Program {
	out := []Program{}
	for _, x := range file {
		i := slices.IndexFunc(s.Now.Programs, x.samePath)
		switch {
		case !slices.ContainsFunc(s.Base.Programs, x.same), i >= 0 && x.same(s.Now.Programs[i]):
			out = append(out, x)
		case i >= 0:
			out = append(out, s.Now.Programs[i])
		}
	}
	return append(out, s.Attached(file)[len(file):]...)
}

// Attached returns the programs of a stack that reads another file after s: those of the file,
// and those that commands have added to the file of s.
func (s *State) Attached(file []Program) []Program {
	all := slices.Clone(file)
	for _, x := range s.Now.Programs {
		if !hasProgram(s.Base.Programs, x.Cgroup) && !hasProgram(file, x.Cgroup) {
			all = append(all, x)
		}
	}
	return all
}

// changed returns live, without the elements that are in base but not in now, and with
// those that are in now but not in base, as equal compares them. These replace elements of
// live for which same returns true.
func changed[T any](live, base, now []T, equal, same func(a, b T) bool) []T {
	in := func(list []T, x T) bool { return slices.ContainsFunc(list, func(y T) bool { return equal(x, y) }) }
	out := []T{}
	for _, x := range live {
		gone := in(base, x) && !in(now, x)
		replaced := slices.ContainsFunc(now, func(n T) bool { return same(n, x) && !in(base, n) })
		if !gone && !replaced {
			out = append(out, x)
		}
	}
	for _, n := range now {
		if !in(base, n) {
			out = append(out, n)
		}
	}
	return out
}

func equal[T comparable](a, b T) bool { return a == b }

func sameFlag(a, b *bool) bool {
	return a == b || a != nil && b != nil && *a == *b
}
