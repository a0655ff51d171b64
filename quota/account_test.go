// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"strings"
	"testing"
)

func TestAccount(t *testing.T) {
	all := readRanges(strings.NewReader(`bob:231072:65536
alice:165536:65536
# a comment
1003:400000:10
root:1000000:1000000000
nobody:500000:1
alice:170000:5
mallory:0:65536
mallory:10:5000
mallory:4294967290:7
mallory:2000000000
nested:600000:10
`), func(name string) (uint32, bool) {
		n, ok := map[string]uint32{"alice": 6001, "bob": 6002, "root": 0, "mallory": 6004, "nested": 400003}[name]
		return n, ok
	})
	for uid, want := range map[uint32]uint32{
		0:          0,
		6001:       6001,
		165535:     165535,
		165536:     6001,
		170002:     6001,
		231071:     6001,
		231072:     6002,
		296607:     6002,
		296608:     296608,
		400009:     400009,  // the owner, 1003, is in the range of mallory
		500000:     500000,  // no such user
		600003:     600003,  // the owner is a subordinate user
		1000000:    1000000, // root's
		11:         6004,
		4294967295: 4294967295,
	} {
		if got := accountIn(all, uid); got != want {
			t.Errorf("user %d is charged to %d, want %d: %v", uid, got, want, all)
		}
		if got := accountIn(all, accountIn(all, uid)); got != accountIn(all, uid) {
			t.Errorf("user %d: the account of the account is %d", uid, got)
		}
	}
}

func FuzzRanges(f *testing.F) {
	f.Add("alice:100000:65536\nbob:165536:65536\n", uint32(100001))
	f.Add("1:2:3\n2:1:1", uint32(2))
	f.Fuzz(func(t *testing.T, text string, uid uint32) {
		all := readRanges(strings.NewReader(text), func(string) (uint32, bool) { return 7, true })
		a := accountIn(all, uid)
		if accountIn(all, a) != a {
			t.Errorf("%q: the account of %d is not its own", text, a)
		}
		if a == 0 && uid != 0 {
			t.Errorf("%q: user %d counts as root", text, uid)
		}
	})
}
