// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestRetransmits(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"rxe0/ports/1/hw_counters/completer_retry_err":     "7\n",
		"rxe0/ports/1/hw_counters/sent_pkts":               "1000\n",
		"mlx5_0/ports/1/hw_counters/local_ack_timeout_err": "1\n",
		"mlx5_0/ports/1/hw_counters/packet_seq_err":        "2\n",
		"mlx5_0/ports/2/hw_counters/packet_seq_err":        "4\n",
		"old0/ports/1/state":                               "4: ACTIVE\n",
		"bad0/ports/1/hw_counters/completer_retry_err":     "many\n",
	} {
		file := filepath.Join(root, "class/infiniband", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	type result struct {
		n  uint64
		ok bool
	}
	for device, want := range map[string]result{
		"rxe0": {7, true}, "mlx5_0": {7, true}, "old0": {}, "bad0": {}, "gone0": {}, "": {}, "..": {}, "../infiniband/rxe0": {},
	} {
		if n, ok := New(root).Retransmits(device); (result{n, ok}) != want {
			t.Errorf("%q: %d, %v, want %+v", device, n, ok, want)
		}
	}
}

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
