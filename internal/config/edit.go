// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ErrByHand means that a file is written in a way that only a person can change without loss.
var ErrByHand = errors.New("config: the file must be changed by hand")

// AddProgram returns the text of a file with an entry of programs for a cgroup. Everything else stays as it is, and all of it if there
// is such an entry. The error matches [ErrInvalid], or [ErrByHand].
func AddProgram(b []byte, cgroup string) ([]byte, error) {
	return edit(b, func(t *text, now []Program) ([]Program, error) {
		if hasProgram(now, cgroup) {
			return now, nil
		}
		return append(slices.Clone(now), Program{Cgroup: cgroup, Connect: true, Accept: true}), t.add(cgroup)
	})
}

// RemoveProgram returns the text of a file without the entry of programs for a cgroup, if there is one. The errors are those of
// AddProgram.
func RemoveProgram(b []byte, cgroup string) ([]byte, error) {
	return edit(b, func(t *text, now []Program) ([]Program, error) {
		i := slices.IndexFunc(now, Program{Cgroup: cgroup}.samePath)
		if i < 0 {
			return now, nil
		}
		return slices.Delete(slices.Clone(now), i, i+1), t.remove(i)
	})
}

// Adds reports whether a file has an entry of programs for a cgroup as AddProgram adds it: nothing else is in its line, and no comment
// above. Then it says nothing that only the file knows.
func Adds(b []byte, cgroup string) bool {
	t, err := newText(b)
	if err != nil {
		return false
	}
	_, list, err := t.programs()
	if err != nil || list == nil {
		return false
	}
	text, err := entryText(cgroup)
	if err != nil {
		return false
	}
	for _, entry := range list.Content {
		line := entry.Line - 1
		if line == lastLine(entry)-1 && strings.TrimSpace(t.lines[line]) == strings.TrimSpace(text) {
			return line == 0 || !strings.HasPrefix(strings.TrimSpace(t.lines[line-1]), "#")
		}
	}
	return false
}

// WithoutPrograms returns the text of a file without programs. It is all of the text if these are in none of the forms that AddProgram
// adds to.
func WithoutPrograms(b []byte) []byte {
	t, err := newText(b)
	if err != nil {
		return b
	}
	key, list, err := t.programs()
	if err != nil || key == nil {
		return b
	}
	t.lines = slices.Delete(t.lines, key.Line-1, lastLine(list))
	return t.bytes()
}

// edit returns the text of a file after a change, which returns the programs that the file should have then.
func edit(b []byte, change func(t *text, now []Program) ([]Program, error)) ([]byte, error) {
	before, err := Parse(b)
	if err != nil {
		return nil, err
	}
	t, err := newText(b)
	if err != nil {
		return nil, err
	}
	want, err := change(t, before.Programs)
	if err != nil {
		return nil, err
	}
	out := t.bytes()
	// YAML has many ways to say a thing: what came of it is what counts.
	after, err := Parse(out)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrByHand, err)
	}
	same := slices.Equal(after.Programs, want)
	before.Programs, after.Programs = nil, nil
	if !same || !reflect.DeepEqual(before, after) {
		return nil, ErrByHand
	}
	return out, nil
}

// A text is a file as lines, and what they mean.
type text struct {
	lines []string
	root  yaml.Node
}

func newText(b []byte) (*text, error) {
	t := &text{lines: slices.Collect(strings.Lines(string(b)))}
	if err := yaml.Unmarshal(b, &t.root); err != nil {
		return nil, syntax(err)
	}
	return t, nil
}

func (t *text) bytes() []byte { return []byte(strings.Join(t.lines, "")) }

// programs returns the key and the list of programs. Both are nil if there is none. The error is ErrByHand for a list that does not have
// its entries in lines of their own.
func (t *text) programs() (key, list *yaml.Node, err error) {
	if len(t.root.Content) == 0 {
		return nil, nil, nil
	}
	m := t.root.Content[0].Content // if it is no mapping, no key is found
	for i := 0; i+1 < len(m); i += 2 {
		if m[i].Value != "programs" {
			continue
		}
		key, list = m[i], m[i+1]
		if list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0 || len(list.Content) == 0 {
			return nil, nil, ErrByHand
		}
		return key, list, nil
	}
	return nil, nil, nil
}

// indent returns what is before the dash of an entry.
func (t *text) indent(entry *yaml.Node) (string, error) {
	spaces, _, ok := strings.Cut(t.lines[entry.Line-1], "-")
	if !ok || strings.Trim(spaces, " ") != "" {
		return "", ErrByHand
	}
	return spaces, nil
}

// entryText returns the line of an entry, with its end.
func entryText(cgroup string) (string, error) {
	name := yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: cgroup}
	if strings.ContainsAny(cgroup, "\r\n") {
		name.Style = yaml.DoubleQuotedStyle // in one line
	}
	value, err := yaml.Marshal(&name)
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return "- cgroup: " + string(value), nil
}

func (t *text) add(cgroup string) error {
	entry, err := entryText(cgroup)
	if err != nil {
		return err
	}
	_, list, err := t.programs()
	if err != nil {
		return err
	}
	if n := len(t.lines); n > 0 && !strings.HasSuffix(t.lines[n-1], "\n") {
		t.lines[n-1] += "\n"
	}
	if list == nil {
		t.lines = append(t.lines, "programs:\n", "  "+entry)
		return nil
	}
	indent, err := t.indent(list.Content[0])
	if err != nil {
		return err
	}
	t.lines = slices.Insert(t.lines, lastLine(list), indent+entry)
	return nil
}

func (t *text) remove(i int) error {
	key, list, err := t.programs()
	if err != nil {
		return err
	}
	entry := list.Content[i]
	if _, err := t.indent(entry); err != nil {
		return err
	}
	from := entry.Line
	if len(list.Content) == 1 {
		from = key.Line
	}
	t.lines = slices.Delete(t.lines, from-1, lastLine(entry))
	return nil
}

// lastLine returns the last line of a node, counted from 1.
func lastLine(n *yaml.Node) int {
	last := n.Line
	for _, c := range n.Content {
		last = max(last, lastLine(c))
	}
	return last
}
