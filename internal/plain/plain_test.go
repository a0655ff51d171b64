// SPDX-License-Identifier: Apache-2.0

package plain

import "testing"

func TestText(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"", ""},
		{"no RoCE device", "no RoCE device"},
		{"userstack: no RoCE device", "no RoCE device"},
		{
			"userstack: declined SMC-R: 0x03030000 (no SMC-R device): userstack: no RoCE device for this network: open soft-lo: softroce: device \"lo\": no such device",
			"declined SMC-R: 0x03030000 (no SMC-R device): no RoCE device for this network: open soft-lo: device \"lo\": no such device",
		},
		{"nl: connect: nl: no such SMC stack", "connect: no such SMC stack"},
		{"service: userstack: stack is closed", "stack is closed"},
		{"config: line 1: a\nconfig: line 2: b; config: c", "line 1: a\nline 2: b; c"},
		{"pnetid A: wire protocol: 10.1.0.1:80 [::1]:80", "pnetid A: wire protocol: 10.1.0.1:80 [::1]:80"},
		{"failed (linkgroup: no active link)", "failed (no active link)"},
		{"ends in service: ", "ends in service: "},
	} {
		if got := Text(test.in); got != test.want {
			t.Errorf("%q: %q, want %q", test.in, got, test.want)
		}
	}
}
