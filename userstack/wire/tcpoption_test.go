// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"path/filepath"
	"testing"
)

func TestTCPOptionCaptured(t *testing.T) {
	// The SYN-ACK of a server that does not listen for SMC has no option.
	without := "tcp_option.h1_smc_client_plain_server.cli.frame4.hex"
	files, _ := filepath.Glob("testdata/captures/tcp_option.*.hex")
	if len(files) < 4 {
		t.Fatalf("only %d files", len(files))
	}
	for _, f := range files {
		opts := readHex(t, f)
		if got, want := HasTCPOption(opts), filepath.Base(f) != without; got != want {
			t.Errorf("%s: %v, want %v", f, got, want)
		}
		// Linux puts the option last, so no shorter area has it.
		for n := range opts {
			if HasTCPOption(opts[:n:n]) {
				t.Errorf("%s cut to %d bytes: found", f, n)
			}
		}
	}
}

func TestHasTCPOption(t *testing.T) {
	tests := []struct {
		name, opts string
		want       bool
	}{
		{"none", "", false},
		{"alone", "fe06e2d4c3d9", true},
		{"between padding", "0101fe06e2d4c3d90000", true},
		{"behind the end", "00fe06e2d4c3d9", false},
		{"behind another experiment", "fe04f989fe06e2d4c3d9", true},
		{"with data", "fe08e2d4c3d90102", false},
		{"other kind", "fd06e2d4c3d9", false},
		{"SMC-D identifier", "fe06e2d4c3c4", false},
		{"identifier cut by the length", "fe05e2d4c3", false},
		{"inside another option", "0308fe06e2d4c3d9", false},
		{"length 0", "fe00e2d4c3d9", false},
		{"length 1", "0301fe06e2d4c3d9", false},
		{"length beyond the end", "fe07e2d4c3d9", false},
		{"no length", "02", false},
		{"in front of a bad one", "fe06e2d4c3d902", true},
	}
	for _, tt := range tests {
		if got := HasTCPOption(mustHex(tt.opts)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	b := AppendTCPOption([]byte{1, 1})
	if !HasTCPOption(b) || len(b) != 2+TCPOptionLen {
		t.Errorf("own option: %x", b)
	}
}
