// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"

	"go.yaml.in/yaml/v3"
)

// hostile is a text that a hostile peer, user or program may choose for its name: a control
// sequence (with an escape character, and with a C1 character), a line end, a carriage
// return, DEL, a character that reverses the order of a line, and a byte that is not UTF-8.
// With four characters before it, it has the length that a name of a device may have.
const hostile = "\x1b\u009b\nf\r\x7f\u202e\xff"

// benign has as many lines as a text that is cleaned.
const benign = "benign"

// poison adds text to each string below v.
func poison(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			poison(v.Elem(), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				poison(v.Field(i), text)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			poison(v.Index(i), text)
		}
	case reflect.String:
		v.SetString(v.String()[:min(len(v.String()), 4)] + text)
	}
}

// poisoned is a stack whose texts all end in text.
type poisoned struct {
	*nltest.Fake
	text string
}

func newPoisoned(text string) *poisoned {
	s := nltest.SampleState()
	s.SEID = nl.SEID{Value: "SEID", Enabled: true}
	s.DevicesD = slices.Clone(s.Devices)
	s.LinkGroupsD = []nl.LinkGroupD{{ID: 7, PNETID: "NET1", V2: &nl.V2Common{Version: 2, EID: "EID", PeerHost: "host-b"}}}
	s.Connections = append(s.Connections, nl.Connection{State: smc.StateActive, Mode: nl.ModeSMCD, DMB: &nl.ConnDMB{}})
	poison(reflect.ValueOf(&s), text)
	return &poisoned{nltest.NewFake(s), text}
}

// PNETs has what a pnet table accepts only from root: names of devices.
func (p *poisoned) PNETs(context.Context) ([]nl.PNET, error) {
	list := []nl.PNET{{ID: "NET1", NetDev: "eth0"}, {ID: "NET2", IBDev: "mlx5_0", IBPort: 1}}
	poison(reflect.ValueOf(list), p.text)
	return list, nil
}

// client returns a client of a server of ctl. It stays open.
func client(t *testing.T, ctl nl.Control) nl.Control {
	t.Helper()
	b := stack(t, fmt.Sprintf("%p", ctl), ctl)
	return struct {
		keepOpen
		nl.ControlSMCD
	}{b.Control.(keepOpen), b.Control.(keepOpen).Control.(nl.ControlSMCD)}
}

// program runs a program under one of its names with a stack.
func program(t *testing.T, c nl.Control, argv ...string) (status int, stdout, stderr string) {
	t.Helper()
	return programOf(t, c, "eth0", argv...)
}

// programOf is program on a host whose netdevs have a name.
func programOf(t *testing.T, c nl.Control, netdev string, argv ...string) (status int, stdout, stderr string) {
	t.Helper()
	streams, _, out, errOut := cmdutil.MemoryStreams()
	f := &cmdutil.Factory{
		IO: streams, Backend: "auto", NetDev: func(uint32) string { return netdev },
		Start: func(context.Context) error { return errors.New("no stack") },
		Dial: func(context.Context, string) (nl.Multi, error) {
			return nl.Multi{{Name: "user", Control: c}}, nil
		},
	}
	status = Program(t.Context(), f, argv)
	return status, out.String(), errOut.String()
}

// listings are the command lines that print what a stack reports.
var listings = []string{
	"smcr linkgroup list", "smcr link list", "smcr device list", "smcr connection list --all", "smcr pnet list", "smcr ueid list",
	"smcr topology", "smcr topology -o dot", "smcr topology -o json", "smcr seid show", "smcr info -o table", "smcr stats show -d", "smcr export", "smcr hslimit show",
	"smcr info", "smcr -d linkgroup show", "smcr linkgroup", "smcr linkgroup link-show", "smcr -d linkgroup link-show", "smcr -dd linkgroup link-show",
	"smcr device", "smcr -d device", "smcr stats", "smcr -d stats", "smcr ueid", "smcr ueid show",
	"smcd info", "smcd linkgroup", "smcd -d linkgroup", "smcd device", "smcd stats", "smcd ueid", "smcd seid",
	"smcss", "smcss --all --debug", "smcss --all --smcr", "smcss --all --smcd", "smcss --all --wide", "smc_pnet", "smc_pnet --show", "smc_dbg",
}

// TestHostileText checks that no listing prints control characters that another host, user
// or program has chosen, or lines that it has added. JSON has the same values, escaped.
func TestHostileText(t *testing.T) {
	t.Setenv("SMCR_STATS_CACHE", t.TempDir()+"/stats")
	serve := func(text string) nl.Control { return client(t, newPoisoned(text)) }
	bad, good := serve(hostile), serve(benign)
	fields := func(line string) []string { return strings.Fields(line) }
	shown := 0
	check := func(line string) {
		t.Helper()
		status, out, errOut := programOf(t, bad, "eth0"+hostile, fields(line)...)
		wantStatus, want, wantErr := programOf(t, good, "eth0"+benign, fields(line)...)
		if status != 0 || wantStatus != 0 {
			t.Errorf("%s: status %d, %d: %s", line, status, wantStatus, errOut)
		}
		if i := strings.IndexFunc(out+errOut, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 {
			t.Errorf("%s prints %q", line, (out + errOut)[max(i-40, 0):i+10])
		}
		if a, b := strings.Count(out, "\n"), strings.Count(want, "\n"); a != b || strings.Count(errOut, "\n") != strings.Count(wantErr, "\n") {
			t.Errorf("%s: status %d, %d lines, want %d:\n%s%s", line, status, a, b, out, errOut)
		}
		if strings.Contains(out, "?f?") || strings.Contains(out, `\u009b`) {
			shown++
		}
	}
	for _, line := range listings {
		check(line)
		if words := fields(line); words[0] == "smcr" && slices.Contains([]string{"list", "--all"}, words[len(words)-1]) {
			check(line + " -o json")
			if words[1] == "linkgroup" || words[1] == "link" || words[1] == "device" || words[1] == "connection" {
				check(line + " -o wide")
			}
		}
	}
	for _, line := range []string{"smcr info -o json", "smcr seid show -o json"} {
		check(line)
	}
	// The others show nothing but numbers, or cut texts short.
	t.Logf("%d listings", shown)
	if shown < 25 {
		t.Errorf("only %d listings have shown the text at all", shown)
	}
	var rows []struct {
		LocalHost string `json:"hostname"`
	}
	_, out, _ := program(t, bad, "smcr", "info", "-o", "json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 || rows[0].LocalHost != "host"+strings.ToValidUTF8(hostile, "\ufffd") {
		t.Errorf("JSON: %v, %q", err, rows)
	}
}

// TestHostileError checks that the text of an error that a stack sends is one line without
// control characters.
func TestHostileError(t *testing.T) {
	fake := nltest.NewFake(nltest.SampleState())
	fake.SetError(errors.New("gone" + hostile))
	c := client(t, fake)
	said := 0
	for _, line := range append(slices.Clone(listings), "smcr ueid add A.B", "smcr pnet flush", "smcr apply /dev/null", "smcd seid enable") {
		_, out, errOut := program(t, c, strings.Fields(line)...)
		if strings.ContainsFunc(out+errOut, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) || strings.Contains(errOut, "\nf") {
			t.Errorf("%s: %q, %q", line, out, errOut)
		}
		if strings.Contains(errOut, "?f?") {
			said++
		}
	}
	if said < 5 {
		t.Errorf("the error was shown only %d times", said)
	}
}

// TestHostileExport checks that the exported configuration has names of devices as they are,
// without printing control characters.
func TestHostileExport(t *testing.T) {
	for _, text := range []string{hostile, "\u009b\u202e\u0085", "\x1b\u2028", "\U000e0041", "\ufeff: [", "\xff\xfe"} {
		_, out, errOut := program(t, client(t, newPoisoned(text)), "smcr", "export")
		if errOut != "" || strings.ContainsFunc(out, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
			t.Errorf("%q: %q, %q", text, out, errOut)
		}
		var got struct {
			PNETs []struct{ NetDev string } `yaml:"pnetids"`
		}
		if err := yaml.Unmarshal([]byte(out), &got); err != nil || len(got.PNETs) != 2 || got.PNETs[0].NetDev != "eth0"+text {
			t.Errorf("%q: %v, %+v in\n%s", text, err, got, out)
		}
	}
}

// strange are texts of others beside control characters: what would leave a value in HTML, XML, JSON, YAML, DOT
// and a shell, formats of package fmt, wide characters and those that combine, and a long one.
var strange = map[string]string{
	"markup": `</script><b onload='x'>&amp;"]]><!--`, "quotes": "\"'`\\\\\"", "YAML": "a: [b, {c: d}] # e", "DOT": `"];x--y[label="\`, "shell": "$(id)`id`;&|><*?~",
	"format": "%s%d%n%[1]d%!", "blanks": " \u00a0\u3000  ", "wide": "世界👩\u200d👧🇩🇪", "combining": "e" + strings.Repeat("\u0301", 200),
	"long": strings.Repeat("x", 300), "start": "\ufeff", "not UTF-8": "\xc3\xe2\x80\xf0\x9f", "NUL": "a\x00b", "tag": "\U000e0041", "surrogate": "\xed\xa0\x80",
}

// poisonedPrograms is a stack with a cgroup that a user has named.
type poisonedPrograms struct{ *poisoned }

func (p poisonedPrograms) Attachments(context.Context) ([]nl.Attachment, error) {
	return []nl.Attachment{{Path: "/user.slice/" + p.text, Cgroup: 7, Run: true, Connect: true, Accept: true}}, nil
}

// TestHostileStrange: whatever the names of peers, devices, programs and cgroups are, each listing has lines of
// printable characters, as many as for other names, and what is JSON or YAML is that.
func TestHostileStrange(t *testing.T) {
	t.Setenv("SMCR_STATS_CACHE", t.TempDir()+"/stats")
	serve := func(name, text string) nl.Control {
		c := stack(t, name, poisonedPrograms{newPoisoned(text)}).Control.(keepOpen).Control.(*nl.Client)
		return attacher{c}
	}
	good := serve(benign, benign)
	lines := []string{
		"smcr linkgroup list", "smcr link list", "smcr device list", "smcr connection list --all", "smcr pnet list", "smcr ueid list",
		"smcr program list", "smcr info", "smcr seid show", "smcr stats show", "smcr topology",
	}
	for name, text := range strange {
		bad := serve(name, text)
		for _, line := range lines {
			for _, form := range []string{"table", "wide", "json"} {
				words := append(strings.Fields(line), "-o", form)
				status, out, errOut := programOf(t, bad, "eth0"+text, words...)
				wantStatus, want, _ := programOf(t, good, "eth0"+benign, words...)
				if status != wantStatus {
					t.Errorf("%s: %q: status %d, want %d: %s", name, words, status, wantStatus, errOut)
					continue
				}
				if all := out + errOut; !utf8.ValidString(all) || strings.ContainsFunc(all, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
					t.Errorf("%s: %q prints %q", name, words, all)
				}
				if strings.Count(out, "\n") != strings.Count(want, "\n") {
					t.Errorf("%s: %q: other lines than for other names:\n%s", name, words, out)
				}
				if form == "json" && status == 0 && !json.Valid([]byte(out)) {
					t.Errorf("%s: %q is no JSON:\n%s", name, words, out)
				}
			}
		}
		if status, out, errOut := program(t, bad, "smcr", "export"); status != 0 || yaml.Unmarshal([]byte(out), new(any)) != nil || !utf8.ValidString(out) {
			t.Errorf("%s: export: %d, %s%s", name, status, out, errOut)
		}
	}
	_, out, _ := program(t, serve("last", "hostile-name"), "smcr", "program", "list")
	if !strings.Contains(out, "/user.slice/hostile-name") {
		t.Errorf("the cgroup is not shown: %s", out)
	}
}
