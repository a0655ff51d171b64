// SPDX-License-Identifier: Apache-2.0

package cmdutil

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
	for _, x := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"list", "lsit", 1}, {"list", "lost", 1}, {"abc", "ca", 3}, {"delete", "del", 3}} {
		if got := distance(x.a, x.b); got != x.want {
			t.Errorf("distance of %q and %q: %d, want %d", x.a, x.b, got, x.want)
		}
	}
}
