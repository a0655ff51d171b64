// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// TestAccountsAdded: users whom an administrator adds while the process runs are charged to their owners, and nobody who was asked for
// before is charged to another one than before.
func TestAccountsAdded(t *testing.T) {
	dir := t.TempDir()
	s := subordinates{subIDs: filepath.Join(dir, "subuid"), passwd: filepath.Join(dir, "passwd")}
	now := time.Unix(1e9, 0)
	want := func(accounts map[uint32]uint32) {
		t.Helper()
		for uid, want := range accounts {
			if got := s.account(now, uid); got != want {
				t.Errorf("user %d is charged to %d, want %d", uid, got, want)
			}
		}
	}
	write := func(name, text string) {
		t.Helper()
		// As useradd does it: another file under the same name.
		if err := errors.Join(os.WriteFile(name+"+", []byte(text), 0o600), os.Rename(name+"+", name)); err != nil {
			t.Fatal(err)
		}
	}
	want(map[uint32]uint32{100001: 100001}) // there is no file
	write(s.passwd, "alice:x:1000:1000::/:/bin/sh\n")
	write(s.subIDs, "alice:100000:65536\n")
	want(map[uint32]uint32{100002: 100002}) // it was looked a moment ago
	now = now.Add(readEvery)
	want(map[uint32]uint32{100000: 1000, 100001: 100001, 100002: 100002, 165535: 1000, 165536: 165536, 300000: 300000})
	// Bob is new; mallory wants users of alice, alice herself and what alice is charged for; carol's owner has been charged to alice.
	write(s.passwd, "alice:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\nmallory:x:1002::\n")
	write(s.subIDs, "alice:100000:65536\nbob:165536:65536\nmallory:150000:100\nmallory:900:101\n100005:400000:10\n")
	now = now.Add(readEvery)
	want(map[uint32]uint32{165536: 165536, 165537: 1001, 150000: 1000, 1000: 1000, 900: 900, 400000: 400000, 0: 0})
	// Who is gone still answers for what was taken.
	write(s.subIDs, "bob:165536:65536\n")
	now = now.Add(readEvery)
	want(map[uint32]uint32{100000: 1000, 165537: 1001})
	if all := s.list(now); len(all) != 2 {
		t.Errorf("%v, want those of two users", all)
	}
	for uid := range uint32(2 * maxOwn) {
		s.account(now, 1<<20+uid)
	}
	write(s.subIDs, "bob:500000:65536\nbob:165536:65536\n")
	now = now.Add(readEvery)
	if len(s.own) > maxOwn || s.account(now, 500000) != 500000 {
		t.Errorf("%d users are remembered, and one who may have been forgotten is charged to %d", len(s.own), s.account(now, 500000))
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
