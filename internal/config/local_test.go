// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var samePrefix = cmpopts.EquateComparable(netip.Prefix{})

func TestParseLocal(t *testing.T) {
	for in, want := range map[string][]LocalJoin{
		"seid: true":        nil,
		"local: {join: []}": {},
		"local: {join: [{program: redis-server, port: 6379, prefix: 10.0.0.0/8}]}": {{"redis-server", 6379, netip.MustParsePrefix("10.0.0.0/8")}},
		"local:\n  join:\n    - port: 65535\n    - prefix: 'fd00::/8'\n    - program: 7z\n": {
			{Port: 65535}, {Prefix: netip.MustParsePrefix("fd00::/8")}, {Program: "7z"},
		},
	} {
		c, err := Parse([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, c.LocalJoin, samePrefix); diff != "" {
			t.Errorf("%s: -want +got:\n%s", in, diff)
		}
	}
}

// TestParseLocalErrors: an invalid entry is reported with its line, and nothing of the file is
// used.
func TestParseLocalErrors(t *testing.T) {
	many := "local:\n  join:\n"
	for i := range MaxLocalJoin + 1 {
		many += fmt.Sprintf("    - port: %d\n", i+1)
	}
	for in, want := range map[string][]string{
		"local:\n": {
			"line 1: local has no value: remove the key, or write [] for an empty list",
		},
		"\nlocal: {}":            {"line 2: local has no join: remove the section, or write {join: []} for an empty list"},
		"local: {join: }":        {"line 1: local has no join: remove the section, or write {join: []} for an empty list"},
		"local: [a]":             {"line 1: local must consist of keys and values, for example {join: [{program: redis-server, port: 6379}]}"},
		"local: {join: a}":       {"line 1: join must be a list, for example [{program: redis-server, port: 6379}]"},
		"local: {joins: []}":     {`line 1: unknown key "joins": did you mean "join"?`},
		"local: {join: [redis]}": {"line 1: each entry of join must consist of keys and values, for example {program: redis-server, port: 6379}"},
		"local:\n  join:\n    - program: a\n      prot: 1\n": {`line 4: unknown key "prot": did you mean "port"?`},
		`local:
  join:
    - {}
    - port: 0
    - program: /usr/bin/redis-server
    - program: redis-server --port 1
    - prefix: 10.0.0.1
    - prefix: 10.0.0.1/8
    - prefix: 10.0.0.0/33
    - prefix: ::ffff:10.0.0.0/104
    - {port: 1, program: a}
    - {program: a, port: 1}
    - {port: 2, prefix: x, program: b}
`: {
			"line 3: the entry of join names nothing: name a program, a port or a prefix",
			"line 4: port 0: a port is a number from 1 to 65535",
			`line 5: program "/usr/bin/redis-server": write the name of the file, without directories, spaces and arguments`,
			`line 6: program "redis-server --port 1": write the name of the file, without directories, spaces and arguments`,
			`line 7: prefix "10.0.0.1": write an address and a length, for example 10.0.0.0/8 or fd00::/8`,
			"line 8: prefix 10.0.0.1/8: the address has bits behind the length: did you mean 10.0.0.0/8?",
			`line 9: prefix "10.0.0.0/33": write an address and a length, for example 10.0.0.0/8 or fd00::/8`,
			`line 10: prefix "::ffff:10.0.0.0/104": write an address and a length, for example 10.0.0.0/8 or fd00::/8`,
			"line 12: the same entry is already listed above",
			`line 13: prefix "x": write an address and a length, for example 10.0.0.0/8 or fd00::/8`,
		},
		"local: {join: [{port: 65536}, {port: -1}, {program: [a]}, {prefix: {}}]}": {
			"line 1: port must be a number from 1 to 65535",
			"line 1: port must be a number from 1 to 65535",
			"line 1: program must be a word, for example redis-server",
			"line 1: prefix must be a word, for example 10.0.0.0/8",
		},
		"local: {join: [{program: " + strings.Repeat("a", maxProgram+1) + "}]}": {"line 1: program: the name has at most 64 characters"},
		many: {"line 35: 33 entries of join: a stack holds at most 32"},
	} {
		c, err := Parse([]byte(in))
		var errs Errors
		if c != nil || !errors.As(err, &errs) {
			t.Errorf("%s: %v, %v", in, c, err)
			continue
		}
		var got []string
		for _, e := range errs {
			got = append(got, e.Where())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", in, diff)
		}
	}
}

// TestLocalOfStack: the list of a stack is exported, and only its own file changes it.
func TestLocalOfStack(t *testing.T) {
	list := []LocalJoin{{Program: "redis-server", Port: 6379}, {Prefix: netip.MustParsePrefix("127.0.0.0/8")}}
	user := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 2, Stack: "smcr", LocalJoin: FormatLocalJoin(list)}})
	kernel := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 2}})
	c, err := Export(t.Context(), user)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list, c.LocalJoin, samePrefix); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for name, tt := range map[string]struct {
		stack  *nltest.Fake
		list   []LocalJoin
		refuse bool
	}{
		"the same":     {user, list, false},
		"no section":   {user, nil, false},
		"another":      {user, list[:1], true},
		"none":         {user, []LocalJoin{}, true},
		"none, kernel": {kernel, []LocalJoin{}, false},
		"the kernel":   {kernel, list, false},
	} {
		plan, err := (&Config{LocalJoin: tt.list}).Plan(t.Context(), tt.stack)
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Check(t.Context(), tt.stack, Host{}); errors.Is(err, nl.ErrNotSupported) != tt.refuse {
			t.Errorf("%s: %v, want a refusal: %t", name, err, tt.refuse)
		}
	}
	for _, bad := range []string{"x", "[{port: 0}]"} {
		if got, err := parseLocalJoin(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
