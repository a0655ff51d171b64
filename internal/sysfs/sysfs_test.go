// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bytes"
	"testing"
)

func TestHardwareID(t *testing.T) {
	blanks := func(s ...byte) []byte { return append(s, bytes.Repeat([]byte{0x40}, 16-len(s))...) }
	for _, test := range []struct {
		util []byte
		port int
		want string
	}{
		{nil, 1, ""},
		{make([]byte, 64), 1, ""},
		{blanks(0xc1, 0xc9, 0xd1, 0xd9, 0xe2, 0xe9, 0xf0, 0xf9), 1, "AIJRSZ09"},
		{append(blanks(0xc1), blanks(0xc2)...), 2, "B"},
		{blanks(0xc1)[:15], 1, ""},
		{[]byte("0123456789ABCDEF"), 1, ""}, // not EBCDIC
	} {
		if got := hardwareID(test.util, test.port); got != test.want {
			t.Errorf("% x, port %d: %q, want %q", test.util, test.port, got, test.want)
		}
	}
}
