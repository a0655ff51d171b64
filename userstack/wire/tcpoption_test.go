// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
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
		got, err := ParseTCPOptions(opts)
		if want := filepath.Base(f) != without; err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", f, got, err, want)
		}
		// Linux puts the option last, so no shorter area has it.
		for n := range opts {
			if got, _ := ParseTCPOptions(opts[:n:n]); got {
				t.Errorf("%s cut to %d bytes: found", f, n)
			}
		}
	}
}

func TestParseTCPOptions(t *testing.T) {
	tests := []struct {
		name, opts string
		want       bool
		err        error
	}{
		{"none", "", false, nil},
		{"alone", "fe06e2d4c3d9", true, nil},
		{"between padding", "0101fe06e2d4c3d90000", true, nil},
		{"behind the end", "00fe06e2d4c3d9", false, nil},
		{"behind another experiment", "fe04f989fe06e2d4c3d9", true, nil},
		{"with data", "fe08e2d4c3d90102", true, nil},
		{"other kind", "fd06e2d4c3d9", false, nil},
		{"SMC-D identifier", "fe06e2d4c3c4", false, nil},
		{"identifier cut by the length", "fe05e2d4c3", false, nil},
		{"inside another option", "0308fe06e2d4c3d9", false, nil},
		{"length 0", "fe00e2d4c3d9", false, ErrLength},
		{"length 1", "0301fe06e2d4c3d9", false, ErrLength},
		{"length beyond the end", "fe07e2d4c3d9", false, ErrLength},
		{"no length", "02", false, ErrLength},
		{"in front of a bad one", "fe06e2d4c3d902", true, nil},
	}
	for _, tt := range tests {
		got, err := ParseTCPOptions(mustHex(tt.opts))
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v, want %v, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
	b := AppendTCPOption([]byte{1, 1})
	if got, err := ParseTCPOptions(b); !got || err != nil || len(b) != 2+TCPOptionLen {
		t.Errorf("own option %x: %v, %v", b, got, err)
	}
}
