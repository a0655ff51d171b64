// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"os"
	"strings"
	"testing"

	"smcr/userstack/service"
)

// TestAllow: which users may run programs over the stack.
func TestAllow(t *testing.T) {
	if (Allow{}).authorize() != nil {
		t.Error("without a list somebody is refused")
	}
	lists := Allow{Users: []uint32{1001, 1002}, Groups: []uint32{2001}}
	for _, tt := range []struct {
		name string
		c    service.Caller
		want bool
	}{
		{"root", service.Caller{}, true},
		{"the owner", service.Caller{UID: uint32(os.Geteuid()), GID: 9}, true},
		{"a user of the list", service.Caller{UID: 1002, GID: 1002}, true},
		{"another user", service.Caller{UID: 1003, GID: 1002, Groups: []uint32{1001}}, false},
		{"a user whose group is of the list", service.Caller{UID: 1003, GID: 2001}, true},
		{"a member of a group of the list", service.Caller{UID: 1003, GID: 1003, Groups: []uint32{27, 2001}}, true},
		{"a user with the number of a group", service.Caller{UID: 2001, GID: 1}, false},
	} {
		err := lists.authorize()(tt.c)
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "--allow-user") {
			t.Errorf("%v does not say what to do", err)
		}
	}
}

// TestParseID: users and groups by name and by number.
func TestParseID(t *testing.T) {
	for s, want := range map[string]uint32{"root": 0, "0": 0, "65533": 65533, "4294967294": 1<<32 - 2} {
		if id, err := parseUser(s); id != want || err != nil {
			t.Errorf("user %q: %d, %v", s, id, err)
		}
		if id, err := parseGroup(s); id != want || err != nil {
			t.Errorf("group %q: %d, %v", s, id, err)
		}
	}
	for _, s := range []string{"", "-1", "4294967295", "4294967296", "no-such-name-here", "1.5", "0x10"} {
		if id, err := parseUser(s); err == nil {
			t.Errorf("user %q is %d", s, id)
		}
		if id, err := parseGroup(s); err == nil {
			t.Errorf("group %q is %d", s, id)
		}
	}
}
