// SPDX-License-Identifier: Apache-2.0

package reasons

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"smcr/smc"
)

// TestForm checks what all entries have in common.
func TestForm(t *testing.T) {
	name := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	sentence := regexp.MustCompile(`^[A-Z0-9'].*[.]$`)
	fragment := regexp.MustCompile(`^(is|are|has|and|does) |:$| to$`)
	quote := regexp.MustCompile(`(^|[ (])'|'([ ,.:;)]|$)`)
	names, texts := map[string]bool{}, map[string]string{}
	for _, r := range All() {
		if !name.MatchString(r.Name) || names[r.Name] {
			t.Errorf("name %q is malformed or not unique", r.Name)
		}
		names[r.Name] = true
		if _, ok := parseCode(r.Name); ok {
			t.Errorf("%s looks like a code", r.Name)
		}
		for _, text := range append([]string{r.Text}, r.Also...) {
			if other, ok := texts[text]; ok || text == "" {
				t.Errorf("%s: text %q is empty or that of %s too", r.Name, text, other)
			}
			texts[text] = r.Name
		}
		if h := r.Heading(); fragment.MatchString(h) || r.Title == r.Text {
			t.Errorf("%s: heading %q does not stand alone, or title and text are the same", r.Name, h)
		}
		if len(r.Cure) == 0 {
			t.Errorf("%s has no cure", r.Name)
		}
		for _, s := range append([]string{r.Cause}, r.Cure...) {
			if !sentence.MatchString(s) || len(quote.FindAllString(s, -1))%2 != 0 {
				t.Errorf("%s: not a sentence: %q", r.Name, s)
			}
		}
	}
	if !slices.IsSortedFunc(codes, func(a, b Reason) int { return int(int64(a.Code) - int64(b.Code)) }) {
		// The old codes of Linux come last.
		old := slices.IndexFunc(codes, func(r Reason) bool { return r.Code == smc.DiagOldTimeout })
		if !slices.IsSortedFunc(codes[:old], func(a, b Reason) int { return int(int64(a.Code) - int64(b.Code)) }) {
			t.Error("codes are not in order")
		}
	}
	if !slices.IsSortedFunc(found, func(a, b Reason) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("found is not in the order of names")
	}
}

// TestFind looks reasons up in the ways of 'smcr explain'.
func TestFind(t *testing.T) {
	for what, want := range map[string]string{
		"0x03030000":    "no-smc-device",
		"03030000":      "no-smc-device",
		"0X0303000A":    "max-conns",
		"0x3030000":     "no-smc-device",
		"no-smc-device": "no-smc-device",
		" No-UEID ":     "no-ueid",
		"0x12345678":    "",
		"":              "",
		"xyzzy":         "",
		"ism":           "no-ism-v2 no-smcd-v2-device? ism-vlan max-dmbs",
		"ipsec":         "ipsec",
		"prefixes of":   "other-subnet",
		"smcr: 3 over TCP: declined SMC-R: 0x030e0000 (no route to the peer's RNIC): destination is not on a directly attached network: 10.9.0.1 is behind a router, which requires SMC version 2 and an enterprise ID": "behind-router",
		"smcr: 1 over TCP: peer declined SMC-R: 0x03030002 (no SMC-R device)": "no-smcr-device",
		"TCP 0x05000000/0x03070000":                   "other-subnet",
		"smcr: 2 over TCP: the stack does not answer": "no-stack",
		"10.1.0.2 does not answer":                    "host-silent",
		"declined SMC-R: 0x03000000 (configuration error): 300 pending handshakes: the handshake limit is reached": "handshake-limit",
	} {
		got := ""
		for _, r := range Find(what) {
			got += " " + r.Name
		}
		got = strings.TrimSpace(got)
		if what == "ism" { // several hits, in the order of All
			if hits := strings.Fields(got); len(hits) < 3 || !slices.Contains(hits, "ism-vlan") || !slices.Contains(hits, "max-dmbs") {
				t.Errorf("%q: %q", what, got)
			}
			continue
		}
		if got != want {
			t.Errorf("%q: %q, want %q", what, got, want)
		}
	}
	if Name(smc.DiagIPsec) != "ipsec" || Name(0) != "" || Name(0x4711) != "" {
		t.Error("Name")
	}
}
