// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"strings"
	"testing"
)

func TestIsLegacy(t *testing.T) {
	commands := map[string]string{
		"device": "device", "dev": "device", "device list": "list", "device show": "list", "device ls": "list",
		"linkgroup": "linkgroup", "lgr": "linkgroup", "linkgroup list": "list", "linkgroup show": "list",
		"link": "link", "link list": "list", "run": "run", "seid": "seid", "seid show": "show",
		"stats": "stats", "stats show": "show", "stats watch": "watch",
		"ueid": "ueid", "ueid list": "list", "ueid add": "add", "info": "info", "pnet": "pnet", "pnet add": "add",
	}
	ours := func(words ...string) string { return commands[strings.Join(words, " ")] }
	for line, want := range map[string]bool{
		"": false, "--help": false, "--version": false, "frobnicate": false, "run -- true": false, "pnet add X -I eth0": false,
		"-h": true, "-v": true, "-help": true, "-x info": true, "--": true, "-- run": true, "-d": true, "--details device": true,
		"help": true, "help link": false, "he": true,
		"device": true, "dev": true, "d": true, "device show all": true, "dev ibdev rxe0": true, "device frobnicate": false, "device show lo": false,
		"device list": false, "device ls": false, "device list -o json": false, "device show -o json": false, "device --help": false,
		"linkgroup": true, "linkgroup list": false, "linkgroup show 100": true, "linkgroup link-show": true, "lin l": true,
		"linkgroup lst": false, "linkgroup show lst": false, "linkgroup 0x1FF": true, "linkgroup li 101": true, "linkgroup a": true,
		"linkgroup 100zz": false, "linkgroup add": false, "linkgroup 123456789": false, "-d linkgroup lst": false, "linkgroup ibdev lst": true,
		"stats bad": false, "stats r": true, "ueid bad": false, "ueid f": true, "ueid rm X": false,
		"lgr": false, "link": false, "link list": false, "link link-show": false, "linkg": true,
		"-d linkgroup": true, "-dd linkgroup link-show": true, "-v run": true, "-d run": false, "-d link list": false,
		"stats": true, "-ad stats": true, "stats show": true, "stats show -d": false, "stats show --output json": false,
		"stats json": true, "stats reset": true, "stats watch": false, "s": true,
		"ueid": true, "ueid add -A": true, "ueid add --help": false, "ueid add A -o": false, "ueid list": false, "ueid a X": true,
		"info": true, "info -o json": false, "info bad": false, "info sh": true, "info help": true, "seid": false, "seid show": false, "se": false,
	} {
		if got := IsLegacy(strings.Fields(line), ours); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}
