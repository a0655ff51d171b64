// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"smcr/internal/printable"
	"smcr/internal/typo"
	"smcr/nl"
	"smcr/pnet"

	"go.yaml.in/yaml/v3"
)

// DefaultPath is the file that services read at their start, with its drop-in files: see [Files].
const DefaultPath = "/etc/smcr/smcr.yaml"

// MaxSize is the largest size of a file that Parse accepts, in bytes.
const MaxSize = 1 << 20

// ErrInvalid is matched by the errors of invalid files. They also match
// [os.ErrInvalid].
var ErrInvalid = fmt.Errorf("config: %w", os.ErrInvalid)

// A Config is the content of a configuration file. A nil field is a missing section.
type Config struct {
	// PNETs is the pnetid table: entries with a network device or a RoCE
	// port, in the order of the file, pnetids in upper case.
	PNETs []nl.PNET
	// UEIDs are the user-defined enterprise IDs, without padding.
	UEIDs []string
	// SEID is true if the system enterprise ID is proposed to peers.
	SEID *bool
	// HSLimitation is the handshake limitation.
	HSLimitation *bool
	// Programs are the cgroups whose programs use SMC, in the order of the file. Only a user-space
	// stack that takes connections at the devices has it.
	Programs []Program
}

// file is the YAML form.
type file struct {
	PNETs        *[]entry   `yaml:"pnetids,omitempty"`
	UEIDs        *[]string  `yaml:"ueids,omitempty"`
	SEID         *bool      `yaml:"seid,omitempty"`
	HSLimitation *bool      `yaml:"handshake_limitation,omitempty"`
	Programs     *[]program `yaml:"programs,omitempty"`
}

type entry struct {
	ID     string `yaml:"pnetid"`
	NetDev string `yaml:"netdev,omitempty"`
	IBDev  string `yaml:"ibdev,omitempty"`
	IBPort *uint8 `yaml:"ibport,omitempty"`
}

// An Error describes an error in a file, and its line. It matches [ErrInvalid].
type Error struct {
	File string // its path; "" if [Parse] has found the error, which knows no path
	Line int    // counted from 1; 0 if the error concerns the whole file
	Text string // what is wrong
}

// Error returns "config: FILE: line N: TEXT".
func (e *Error) Error() string {
	if e.File != "" {
		return "config: " + e.File + ": " + e.Where()
	}
	return "config: " + e.Where()
}

// Where returns "line N: TEXT", for a message that names the file.
func (e *Error) Where() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Text)
}

// Is reports whether target is ErrInvalid or os.ErrInvalid.
func (e *Error) Is(target error) bool { return target == ErrInvalid || target == os.ErrInvalid }

// Errors are all errors in a file. It matches [ErrInvalid].
type Errors []*Error

// Error returns one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, x := range e {
		lines[i] = x.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the errors.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, x := range e {
		errs[i] = x
	}
	return errs
}

// Read reads a file of at most [MaxSize] bytes, which has a name instead of a path, for [Merge].
func Read(r io.Reader, name string) ([]File, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return []File{{name, b}}, nil
}

// Parse parses a file. The error is an [Errors] with all errors in the file. An
// empty file is a Config without sections.
func Parse(b []byte) (*Config, error) { return Merge([]File{{Text: b}}) }

// parseFile parses one of the files of a configuration. It returns the parser, too, for the lines of what the files say together.
func parseFile(b []byte) (*Config, *parser, error) {
	if len(b) > MaxSize {
		return nil, nil, Errors{{Text: fmt.Sprintf("the file is larger than %d KiB", MaxSize>>10)}}
	}
	var f file
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	switch err := dec.Decode(&f); {
	case errors.Is(err, io.EOF):
		return &Config{}, &parser{root: &yaml.Node{}}, nil
	case err != nil:
		return nil, nil, wrongKinds(syntax(err), b)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, nil, Errors{{Text: "more than one document in the file"}}
	}
	var root yaml.Node
	if err := yaml.Unmarshal(b, &root); err != nil {
		return nil, nil, syntax(err)
	}
	p := &parser{root: &root}
	c := p.config(&f)
	if len(p.errs) > 0 {
		return nil, nil, p.errs
	}
	return c, p, nil
}

// syntax converts an error of the YAML decoder into Errors.
func syntax(err error) Errors {
	texts := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		texts = te.Errors
	}
	var out Errors
	for _, t := range texts {
		e := &Error{Text: t}
		var rest string
		if n, _ := fmt.Sscanf(t, "line %d:", &e.Line); n == 1 {
			if _, rest, _ = strings.Cut(t, ": "); rest != "" {
				e.Text = rest
			}
		}
		e.Text = plain(e.Text)
		out = append(out, e)
	}
	return out
}

// plain removes the Go types of the decoder from a message.
func plain(s string) string {
	if field, ok := strings.CutPrefix(s, "field "); ok {
		if name, _, ok := strings.Cut(field, " not found in type"); ok {
			return fmt.Sprintf("unknown key %q%s", name, meant(name))
		}
	}
	return strings.NewReplacer(
		"into []config.entry", "as a list of pnetids", "into []config.program", "as a list of programs", "into config.program", "as an entry of programs", "into config.entry", "as an entry of a pnetid",
		"into config.file", "as a configuration", "into []string", "as a list", "into string", "as text",
		"into bool", "as true or false", "into uint8", "as a port number", "into uint16", "as a port number", "!!", "",
	).Replace(s)
}

// meant returns the key that was probably meant, as the end of a message, or "".
func meant(key string) string {
	switch key { // flags of 'smcr attach'
	case "unit":
		return ": write the path of its cgroup, for example cgroup: /system.slice/nginx.service"
	case "no-adapt", "no_adapt":
		return ": write adapt: false"
	}
	var keys []string
	for _, t := range []reflect.Type{reflect.TypeFor[file](), reflect.TypeFor[entry](), reflect.TypeFor[program]()} {
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			keys = append(keys, name)
		}
	}
	if near := typo.Meant(key, keys, ""); near != "" {
		return ": " + near
	}
	return ""
}

// A parser checks the content of a file and collects the errors.
type parser struct {
	path string // of the file, or ""
	root *yaml.Node
	errs Errors
}

func (p *parser) fail(line int, format string, args ...any) {
	p.errs = append(p.errs, &Error{Line: line, Text: fmt.Sprintf(format, args...)})
}

// find returns the value of a key of the file, or nil.
func (p *parser) find(key string) *yaml.Node {
	if len(p.root.Content) == 0 || p.root.Content[0].Kind != yaml.MappingNode {
		return nil
	}
	m := p.root.Content[0].Content
	for i := 0; i+1 < len(m); i += 2 {
		if m[i].Value == key {
			return m[i+1]
		}
	}
	return nil
}

// line returns the line of the i-th element of a key's list, or that of the key.
func (p *parser) line(key string, i int) int {
	n := p.find(key)
	switch {
	case n == nil:
		return 0
	case n.Kind == yaml.AliasNode:
		n = n.Alias
	}
	if i >= 0 && i < len(n.Content) {
		n = n.Content[i]
	}
	return n.Line
}

func (p *parser) config(f *file) *Config {
	// A key without a value is an error, because it could mean an empty list, which
	// empties a table, or a missing section, which changes nothing.
	for _, key := range []string{"pnetids", "ueids", "seid", "handshake_limitation", "programs"} {
		if n := p.find(key); n != nil && n.Tag == "!!null" {
			p.fail(n.Line, "%s has no value: remove the key, or write [] for an empty list", key)
		}
	}
	c := &Config{SEID: f.SEID, HSLimitation: f.HSLimitation}
	if f.PNETs != nil {
		c.PNETs = p.pnets(*f.PNETs)
	}
	if f.UEIDs != nil {
		c.UEIDs = p.ueids(*f.UEIDs)
	}
	if f.Programs != nil {
		c.Programs = p.programs(*f.Programs)
	}
	return c
}

func (p *parser) pnets(entries []entry) []nl.PNET {
	table := new(pnet.Table)
	for i, e := range entries {
		line := p.line("pnetids", i)
		n := nl.PNET{ID: e.ID, NetDev: e.NetDev, IBDev: e.IBDev}
		switch {
		case e.ID == "":
			p.fail(line, "the entry has no pnetid")
			continue
		case e.NetDev == "" && e.IBDev == "":
			p.fail(line, "pnetid %s: name a netdev or an ibdev", e.ID)
			continue
		case e.IBPort != nil && e.IBDev == "":
			p.fail(line, "pnetid %s: ibport needs an ibdev", e.ID)
			continue
		case e.IBPort != nil && (*e.IBPort < 1 || *e.IBPort > pnet.MaxIBPort):
			p.fail(line, "pnetid %s: invalid port %d: a RoCE port is 1 or 2", e.ID, *e.IBPort)
			continue
		case e.IBPort != nil:
			n.IBPort = *e.IBPort
		}
		// If a device is named twice, only one of its entries would take effect.
		for _, half := range halves(n) {
			if err := table.Add(half); err != nil {
				p.fail(line, "pnetid %s: %s", e.ID, reason(err))
				break
			}
		}
	}
	return append([]nl.PNET{}, table.Entries()...)
}

// halves splits an entry into one for each device.
func halves(n nl.PNET) []nl.PNET {
	if n.NetDev == "" || n.IBDev == "" {
		return []nl.PNET{n}
	}
	return []nl.PNET{{ID: n.ID, NetDev: n.NetDev}, {ID: n.ID, IBDev: n.IBDev, IBPort: n.IBPort}}
}

// reason returns the text of an error of a table, for users.
func reason(err error) string {
	var invalid *pnet.InvalidError
	switch {
	case errors.As(err, &invalid):
		return invalid.Reason
	case errors.Is(err, os.ErrExist):
		return "the device already has an entry above"
	}
	return err.Error()
}

func (p *parser) ueids(list []string) []string {
	out := []string{}
	for i, s := range list {
		line := p.line("ueids", i)
		eid := strings.TrimRight(s, " ")
		var invalid *nl.EIDError
		switch err := nl.CheckEID(eid); {
		case errors.As(err, &invalid):
			p.fail(line, "enterprise ID %q: %s", s, invalid.Reason)
		case slices.Contains(out, eid):
			p.fail(line, "enterprise ID %q is already listed above", s)
		default:
			out = append(out, eid)
		}
	}
	if len(list) > nl.MaxUEIDs {
		p.fail(p.line("ueids", nl.MaxUEIDs), "%d enterprise IDs: a stack holds at most %d", len(list), nl.MaxUEIDs)
	}
	return out
}

// Complete returns a copy of c in which each section that is missing in c has the
// value of a stack that was just started, except SEID, whose value depends on the
// host. ueids are the enterprise IDs of such a stack.
func (c *Config) Complete(ueids ...string) *Config {
	d := *c
	if d.PNETs == nil {
		d.PNETs = []nl.PNET{}
	}
	if d.UEIDs == nil {
		d.UEIDs = append([]string{}, ueids...)
	}
	if d.HSLimitation == nil {
		d.HSLimitation = new(bool)
	}
	if d.Programs == nil {
		d.Programs = []Program{}
	}
	return &d
}

// Empty reports whether all sections are missing.
func (c *Config) Empty() bool {
	return c.PNETs == nil && c.UEIDs == nil && c.SEID == nil && c.HSLimitation == nil && c.Programs == nil
}

// AppendYAML appends the YAML form of c. Parse of the result returns c. Characters of names
// that are not printable are escaped.
func (c *Config) AppendYAML(b []byte) ([]byte, error) {
	f := file{SEID: c.SEID, HSLimitation: c.HSLimitation}
	if c.PNETs != nil {
		f.PNETs = new([]entry)
		for _, n := range c.PNETs {
			e := entry{ID: n.ID, NetDev: n.NetDev, IBDev: n.IBDev}
			if n.IBDev != "" {
				port := max(1, n.IBPort)
				e.IBPort = &port
			}
			*f.PNETs = append(*f.PNETs, e)
		}
	}
	if c.UEIDs != nil {
		f.UEIDs = &c.UEIDs
	}
	if c.Programs != nil {
		list := programsOf(c.Programs)
		f.Programs = &list
	}
	if f == (file{}) {
		return b, nil
	}
	var node yaml.Node
	if err := node.Encode(f); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	quote(&node)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&node); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return append(b, printable.JSON(out.Bytes())...), nil
}

// quote makes the encoder write scalars with characters that are not printable in double
// quotes, where the escape sequences are those of JSON.
func quote(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && printable.Line(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		quote(c)
	}
}
