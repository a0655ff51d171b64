// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/nl"
)

// nouns are the nouns of the program, with their other names and with their verbs.
var nouns = []struct {
	noun  string
	words []string
	verbs []string
}{
	{"linkgroup", []string{"linkgroups", "lgr", "lgrs", "lg"}, []string{"list", "del"}},
	{"link", []string{"links"}, []string{"list", "del"}},
	{"device", []string{"devices", "dev", "devs"}, []string{"list"}},
	{"connection", []string{"connections", "conn", "conns"}, []string{"list"}},
	{"pnet", []string{"pnets", "pnetid", "pnetids"}, []string{"list", "add", "del", "flush"}},
	{"ueid", []string{"ueids", "eid", "eids"}, []string{"list", "add", "del", "flush"}},
	{"seid", nil, []string{"show", "enable", "disable"}},
	{"hslimit", nil, []string{"show", "enable", "disable"}},
	{"stats", []string{"statistics"}, []string{"show", "reset", "watch"}}, // watch has no other names
	{"info", nil, []string{"show"}},
	{"rnics", []string{"rnic"}, []string{"show"}},
	{"topology", nil, []string{"show"}},
	{"program", []string{"programs"}, []string{"list"}},
	{"service", []string{"services"}, []string{"show", "status", "enable", "disable"}}, // status has no other names
}

// otherNames are all names of each verb.
var otherNames = map[string][]string{
	"list": {"list", "show", "ls"}, "show": {"list", "show", "ls"},
	"add": {"add", "create", "new"}, "del": {"del", "delete", "rm", "remove"},
	"flush": {"flush", "clear"}, "reset": {"reset"}, "enable": {"enable", "on"}, "disable": {"disable", "off"},
	"status": {"status"},
}

// TestGrammarTable checks that each noun with verbs is in the table above.
func TestGrammarTable(t *testing.T) {
	streams, _, _, _ := cmdutil.MemoryStreams()
	for _, c := range NewRoot(&cmdutil.Factory{IO: streams, Backend: "auto"}).Commands() {
		i := slices.IndexFunc(nouns, func(n struct {
			noun         string
			words, verbs []string
		}) bool {
			return n.noun == c.Name()
		})
		if c.HasSubCommands() && !c.Hidden && c.Name() != "verbs" && i < 0 {
			t.Errorf("%s is not in the table", c.Name())
		}
		for _, verb := range c.Commands() {
			if i >= 0 && !slices.Contains(nouns[i].verbs, verb.Name()) {
				t.Errorf("%s is not in the table", verb.CommandPath())
			}
		}
	}
}

// TestVerbs runs each verb of each noun by each of its names, and checks that all names
// do the same.
func TestVerbs(t *testing.T) {
	for _, n := range nouns {
		for _, verb := range n.verbs {
			if n.noun == "service" && verb != "show" {
				continue // it would ask the systemd of this computer: TestServices of internal/testing/packages
			}
			t.Run(n.noun+" "+verb, func(t *testing.T) { testVerb(t, n.noun, n.words, verb) })
		}
	}
}

func testVerb(t *testing.T, name string, words []string, verb string) {
	var want string
	for _, noun := range append([]string{name}, words...) {
		for _, word := range otherNames[verb] {
			t.Run(noun+" "+word, func(t *testing.T) {
				w, fake := newWorld(t)
				w.attaches()
				if err := fake.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "eth0"}); err != nil {
					t.Fatal(err)
				}
				args := []string{noun, word}
				switch name + " " + verb {
				case "pnet add":
					args = append(args, "NET2", "-I", "eth1")
				case "pnet del":
					args = append(args, "NET1")
				case "linkgroup del":
					args = append(args, "100")
				case "link del":
					args = append(args, "100", "1")
				case "ueid add":
					args = append(args, "NEW.EID")
				case "ueid del":
					args = append(args, "SMCV2-EXAMPLE-UEID")
				}
				status, out, errOut := w.run(args...)
				pnets, _ := fake.PNETs(t.Context())
				eids, _ := fake.UEIDs(t.Context())
				limit, _ := fake.HSLimitation(t.Context())
				links, _ := fake.Links(t.Context())
				b, err := json.Marshal([]any{status, out, errOut, pnets, eids, limit, links})
				if err != nil {
					t.Fatal(err)
				}
				if want == "" {
					want = string(b)
				}
				// The sample state has no system EID, so seid cannot change it.
				if name == "seid" && verb != "show" && status == 3 {
					status = 0
				}
				if string(b) != want || status != 0 {
					t.Errorf("%v: %s, want %s", args, b, want)
				}
			})
		}
	}
}

// TestNoVerb checks that a noun without a verb lists, with any flags.
func TestNoVerb(t *testing.T) {
	w, _ := newWorld(t)
	w.attaches()
	for _, n := range nouns {
		verb := n.verbs[0]
		for _, flags := range []string{"", "-o json", "--output json", "--output=json", "-ojson", "--backend auto", "-o json --backend=auto"} {
			f := strings.Fields(flags)
			wantStatus, want, wantErr := w.run(append([]string{n.noun, verb}, f...)...)
			for _, args := range [][]string{
				append([]string{n.noun}, f...),
				append(append([]string{n.noun}, f...), verb),
				append(append([]string{n.noun}, f...), "ls"),
				append([]string{"--backend", "auto", n.noun}, f...),
			} {
				status, out, errOut := w.run(args...)
				if status != wantStatus || out != want || errOut != wantErr {
					t.Errorf("%q: %d, %q, %q, want %d, %q, %q", args, status, out, errOut, wantStatus, want, wantErr)
				}
			}
			if wantStatus != 0 {
				t.Errorf("%s %s %s: %s", n.noun, verb, flags, wantErr)
			}
		}
		for _, args := range [][]string{{n.noun, "help"}, {n.noun, "--help"}, {n.noun, "-h"}, {n.noun, "help", "-o", "json"}, {"help", n.noun}} {
			if status, out, _ := w.run(args...); status != 0 || !strings.Contains(out, "Usage:") || !strings.Contains(out, "smcr "+n.noun) {
				t.Errorf("%q: %d, %q", args, status, out)
			}
		}
	}
	if _, out, _ := w.run("conn", "-a"); strings.Count(out, "\n") < 4 {
		t.Errorf("conn -a:\n%s", out)
	}
	if status, out, _ := w.run("version"); status != 0 || out != "smcr 1.2.3\n" {
		t.Errorf("version: %d, %q", status, out)
	}
}

// TestTypos misspells each verb of each noun in several ways, with and without flags. It
// checks that the message proposes the right verb, and that nothing is listed or changed.
func TestTypos(t *testing.T) {
	w, fake := newWorld(t)
	for _, n := range nouns {
		for _, verb := range n.verbs {
			if verb == "watch" {
				continue // it has no other names, and does not end by itself
			}
			for _, typo := range []string{
				verb[:1] + verb[2:],                         // without one letter
				verb[:2] + verb[1:2] + verb[2:],             // with one letter twice
				verb[:1] + verb[2:3] + verb[1:2] + verb[3:], // with two letters exchanged
				verb[:len(verb)-1] + "z",                    // with another letter at the end
				strings.ToUpper(verb), verb[:len(verb)-1],   // in capitals; without the last letter
				verb[:len(verb)-2] + "q" + verb[len(verb)-1:], // with another letter before the last
			} {
				if len(typo) < 3 || slices.Contains([]string{"add", "de"}, typo) {
					continue // a word of two letters can stand for several verbs
				}
				for _, flags := range [][]string{nil, {"-o", "json"}, {"--backend", "auto"}} {
					status, out, errOut := w.run(append([]string{n.noun, typo}, flags...)...)
					want := "smcr: unknown command \"" + typo + "\" for \"smcr " + n.noun + "\": did you mean \""
					rest, ok := strings.CutPrefix(errOut, want)
					meant := strings.TrimSuffix(rest, "\"?\n")
					if status != 2 || out != "" || !ok || !slices.Contains(otherNames[verb], meant) {
						t.Errorf("%s %s %q: %d, %q, %q", n.noun, typo, flags, status, out, errOut)
					}
				}
			}
		}
		for _, word := range []string{"frobnicate", "xyzzy", "4711x"} {
			status, out, errOut := w.run(n.noun, word)
			if want := "smcr: unknown command \"" + word + "\" for \"smcr " + n.noun + "\": see 'smcr " + n.noun + " --help'\n"; status != 2 || out != "" || errOut != want {
				t.Errorf("%s %s: %d, %q, %q", n.noun, word, status, out, errOut)
			}
		}
		typo := n.noun[:len(n.noun)-2] + n.noun[len(n.noun)-1:]
		if n.noun == "service" {
			typo = "servic" // the other one is as near to serve
		}
		status, out, errOut := w.run(typo, "list")
		if want := "did you mean \"" + n.noun + "\"?\n"; len(typo) > 3 && (status != 2 || out != "" || !strings.HasSuffix(errOut, want)) {
			t.Errorf("%s: %d, %q, %q, want %s", typo, status, out, errOut, want)
		}
	}
	eids, _ := fake.UEIDs(t.Context())
	pnets, _ := fake.PNETs(t.Context())
	if len(eids) != 1 || len(pnets) != 0 {
		t.Errorf("a typing error changed something: %v, %v", eids, pnets)
	}
}

// TestNames checks that lists take names of objects, and report names that do not exist.
func TestNames(t *testing.T) {
	w, fake := newWorld(t)
	if err := fake.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "eth0"}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		line string
		rows int
	}{
		{"linkgroup list 100", 1}, {"linkgroup show 100 -o table", 1}, {"linkgroup 00000100 -o table", 1}, {"linkgroup list 0x101", 1},
		{"linkgroup list 100 200", 2}, {"linkgroup ls 100 --role client", 0},
		{"link list 101", 1}, {"link 100", 2}, {"link ls 00000100 00000301", 3},
		{"device list srx_eth0", 1}, {"device show eth0", 1}, {"device ls mlx5_0 srx_eth0", 3},
		{"connection list 1001", 1}, {"conn ls 10.77.0.2:40000", 1}, {"connection show 1001 1002", 2},
		{"pnet list net1", 1}, {"ueid list SMCV2-EXAMPLE-UEID", 1},
	} {
		status, out, errOut := w.run(strings.Fields(test.line)...)
		if rows := max(0, strings.Count(out, "\n")-1); status != 0 || errOut != "" || rows != test.rows {
			t.Errorf("%s: %d, %d rows, want %d:\n%s%s", test.line, status, rows, test.rows, out, errOut)
		}
	}
	for _, test := range []struct {
		line   string
		status int
		text   string
	}{
		{"linkgroup list 999", 3, `no link group 00000999: see 'smcr linkgroup list'`},
		{"linkgroup del 999", 3, `no link group 00000999: see 'smcr linkgroup list'`},
		{"linkgroup list 100 999 -o json", 3, `no link group 00000999: see 'smcr linkgroup list'`},
		{"linkgroup show 999 -o wide", 3, `no link group 00000999: see 'smcr linkgroup list'`},
		{"linkgroup list lst", 2, `invalid link group "lst": an identifier has 1 to 8 hexadecimal digits`},
		{"linkgroup list 123456789", 2, `invalid link group "123456789": an identifier has 1 to 8 hexadecimal digits`},
		{"link list 999", 3, `no link 00000999: see 'smcr link list'`},
		{"device list nosuch", 3, `no RoCE device "nosuch": see 'smcr device list'`},
		{"connection list 4711", 3, `no connection 4711: see 'smcr connection list'`},
		{"connection list 192.0.2.1:80", 3, `no connection 192.0.2.1:80: see 'smcr connection list'`},
		{"connection list nonsense", 2, `invalid connection "nonsense": must be the inode of a socket or ADDRESS:PORT`},
		{"pnet list A-B", 2, `invalid pnetid "A-B": a pnetid has only letters and digits, not '-'`},
		{"pnet list NOSUCH", 3, `no pnetid "NOSUCH": see 'smcr pnet list'`},
		{"ueid list NO.SUCH", 3, `no enterprise ID "NO.SUCH": see 'smcr ueid list'`},
		{"stats show 100", 2, `smcr stats show: unexpected argument "100"`},
	} {
		status, out, errOut := w.run(strings.Fields(test.line)...)
		if status != test.status || out != "" || strings.TrimPrefix(errOut, "smcr: ") != test.text+"\n" {
			t.Errorf("%s: %d, %q, %q, want %d, %q", test.line, status, out, errOut, test.status, test.text)
		}
	}
}

// TestInterval checks that an interval without --watch is not taken for a name.
func TestInterval(t *testing.T) {
	streams, _, _, _ := cmdutil.MemoryStreams()
	for line, want := range map[string]string{
		"linkgroup list -w 100":          "linkgroup list -w=100",
		"linkgroup list 100 -w":          "linkgroup list 100 -w",
		"linkgroup -w 5s":                "linkgroup list -w=5s",
		"lin ls --watch 500ms 100":       "linkgroup ls --watch=500ms 100",
		"conn -aw 2":                     "connection list -aw=2",
		"info -w 5":                      "info -w=5",
		"info -w show":                   "info -w",
		"stats -w ls":                    "stats ls -w",
		"linkgroup list -w -o json":      "linkgroup list -w -o json",
		"run -- prog -w 5":               "run -- prog -w 5",
		"run watch -w 5":                 "run watch -w 5",
		"check -o json host":             "check -o json host",
		"pnet add NET1 -I eth0":          "pnet add NET1 -I eth0",
		"pnet -I eth0 add NET1":          "pnet -I eth0 add NET1",
		"verbs perf write-bw":            "verbs perf write-bw",
		"--backend user linkgroup":       "linkgroup list --backend user",
		"linkgroup --role server":        "linkgroup list --role server",
		"linkgroup list -- 100":          "linkgroup list -- 100",
		"__complete linkgroup list -w 5": "__complete linkgroup list -w 5",
	} {
		root := NewRoot(&cmdutil.Factory{IO: streams, Backend: "auto"})
		got, err := normalize(root, strings.Fields(line))
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v, want %q", line, got, err, want)
		}
	}
}

// TestTwoGrammars runs the program: command lines of smc-tools have the output of
// smc-tools, all others that of smcr.
func TestTwoGrammars(t *testing.T) {
	w, _ := newWorld(t)
	program := func(line string) (int, string, string) {
		streams, _, out, errOut := cmdutil.MemoryStreams()
		f := w.factory(streams)
		return Program(t.Context(), f, append([]string{"smcr"}, strings.Fields(line)...)), out.String(), errOut.String()
	}
	for line, want := range map[string]string{
		"linkgroup ls": "linkgroup list", "linkgroups": "linkgroup list", "lin ls": "linkgroup list", "linkgroup -o json": "linkgroup list -o json",
		"linkgroup 100 -o json": "linkgroup list 100 -o json", "linkgroup show 100 -o wide": "linkgroup list 100 -o wide",
		"stats ls": "stats show", "stats -o json": "stats show -o json", "dev -o json": "device list -o json", "device ls": "device list",
		"ueid ls": "ueid list", "ueid -o json": "ueid list -o json", "link": "link list", "connections -a": "connection list --all",
	} {
		status, out, errOut := program(line)
		_, wantOut, _ := w.run(strings.Fields(want)...)
		if status != 0 || out != wantOut || out == "" || errOut != "" {
			t.Errorf("%s: %d, %q, %q, want %q", line, status, out, errOut, wantOut)
		}
	}
	// Words of smc-tools, also abbreviated.
	_, list, _ := program("linkgroup show")
	_, links, _ := program("linkgroup link-show")
	for line, want := range map[string]string{
		"linkgroup": list, "lin": list, "li s": list, "linkgroup a": list, "l": list, "linkgroup li": links, "lin link-s all": links,
	} {
		if status, out, errOut := program(line); status != 0 || out != want || !strings.HasPrefix(out, "LG-ID    LG-Role") || errOut != "" {
			t.Errorf("%s: %d, %q, %q, want %q", line, status, out, errOut, want)
		}
	}
	if status, out, _ := program("linkgroup show 999"); status != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("linkgroup show 999: %d, %q", status, out)
	}
	for _, line := range []string{
		"linkgroup lst", "linkgroup show lst", "lin lst", "device lst", "dev shwo", "info lst", "stats shwo", "stats rset",
		"ueid lst", "ueid dle X", "-d linkgroup lst", "-d linkgroup ls", "link lst", "linkgroup 100zz", "linkgroup add", "linkgrp", "--backend user linkgroup lst",
	} {
		if status, out, errOut := program(line); status != 2 || out != "" || !strings.HasPrefix(errOut, "smcr: ") {
			t.Errorf("%s: %d, %q, %q", line, status, out, errOut)
		}
	}
	if status, out, errOut := program("linkgroup list 999"); status != 3 || out != "" || errOut != "smcr: no link group 00000999: see 'smcr linkgroup list'\n" {
		t.Errorf("linkgroup list 999: %d, %q, %q", status, out, errOut)
	}
}
