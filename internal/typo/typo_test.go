// SPDX-License-Identifier: Apache-2.0

package typo

import "testing"

func TestNearest(t *testing.T) {
	words := []string{"list", "add", "del", "flush", "link-show", "ls", "delete", "remove", "rm"}
	for word, want := range map[string]string{
		"lst": "list", "lsit": "list", "lis": "list", "lits": "list", "LIST": "list", "liste": "list",
		"ad": "add", "addd": "add", "dell": "del", "dlete": "delete", "remve": "remove", "rmove": "remove", "fl": "flush", "flsuh": "flush",
		"link": "link-show", "lnk-show": "link-show",
		"": "", "x": "", "frobnicate": "", "zz": "", "show": "", "100": "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": "", "\xff\xfe": "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	for word, want := range map[string]string{"net11": "NET1", "NTE1": "NET1", "NET1": "NET1", "SMCV2-EXMAPLE": "SMCV2-EXAMPLE", "other": ""} {
		if got := Nearest(word, []string{"NET1", "SMCV2-EXAMPLE"}); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	for _, x := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"list", "lsit", 1}, {"list", "lost", 1}, {"abc", "ca", 3}, {"delete", "del", 3}} {
		if got := distance(x.a, x.b); got != x.want {
			t.Errorf("distance of %q and %q: %d, want %d", x.a, x.b, got, x.want)
		}
	}
}

func TestTexts(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{Meant("lsit", []string{"list", "del"}, "see help"), `did you mean "list"?`},
		{Meant("xyz", []string{"list", "del"}, "see help"), "see help"},
		{Meant("list", []string{"list"}, "see help"), "see help"},
		{Choose("jsno", []string{"table", "json"}), `choose one of table, json: did you mean "json"?`},
		{Choose("xml", []string{"table", "json"}), "choose one of table, json"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}
