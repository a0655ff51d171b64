// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var cmpAddr = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

// The format is ours, so these bytes are its definition: a change of them
// needs a new Version.
var golden = []struct {
	name string
	m    Message
	hex  string
}{
	{
		"hello", Message{Type: TypeHello, Flags: FlagLocal, Size: Version, Text: "ls -l"},
		"0100080000000000" + "0000000000000000" + "00000000" + "00000000" + "00000000" + "06000000" + "0500" + "0000" +
			strings.Repeat("00", 48) + "6c73202d6c",
	},
	{
		"connect", Message{
			Type: TypeConnect, Flags: FlagNonblock, Conn: 0x0102030405060708,
			Remote: netip.MustParseAddrPort("192.0.2.1:8080"),
		},
		"0300010000000000" + "0807060504030201" + strings.Repeat("00", 16) + "0000" + "0000" +
			strings.Repeat("00", 24) + "0400901f00000000c0000201" + strings.Repeat("00", 12),
	},
	{
		"accept", Message{
			Type: TypeAccept, Conn: 2,
			Local:  netip.MustParseAddrPort("[fe80::1%3]:80"),
			Remote: netip.MustParseAddrPort("[::ffff:192.0.2.1]:1"),
		},
		"0400000000000000" + "0200000000000000" + strings.Repeat("00", 16) + "0000" + "0000" +
			"0600500003000000fe800000000000000000000000000001" + "060001000000000000000000000000000000ffffc0000201",
	},
	{
		"set-option", Message{Type: TypeSetOption, Conn: 1, Seq: 9, Level: 6, Name: 1, Value: []byte{1, 0, 0, 0}, Rights: 0x1_0000_3000},
		"0900000009000000" + "0100000000000000" + "00000000" + "06000000" + "01000000" + "00000000" + "0000" + "0400" +
			strings.Repeat("00", 48) + "01000000" + "0030000001000000",
	},
	{
		"ready", Message{Type: TypeReady, Mode: ModeSMCR, Conn: 1},
		"4601000000000000" + "0100000000000000" + strings.Repeat("00", 16) + "0000" + "0000" + strings.Repeat("00", 48),
	},
	{
		"local", Message{Type: TypeLocal, Mode: ModeLocal, Conn: 1},
		"4a03000000000000" + "0100000000000000" + strings.Repeat("00", 16) + "0000" + "0000" + strings.Repeat("00", 48),
	},
	{
		"failed", Message{Type: TypeFailed, Conn: 1, Errno: 111, Text: "no"},
		"4300000000000000" + "0100000000000000" + "6f000000" + strings.Repeat("00", 12) + "0200" + "0000" +
			strings.Repeat("00", 48) + "6e6f",
	},
}

func TestMessageGolden(t *testing.T) {
	for _, tt := range golden {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.m.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.hex, hex.EncodeToString(b)); diff != "" {
				t.Errorf("encoding (-want +got):\n%s", diff)
			}
			m, err := ParseMessage(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.m, m, cmpAddr); diff != "" {
				t.Errorf("decoding (-want +got):\n%s", diff)
			}
			for n := range b {
				if _, err := ParseMessage(b[:n]); !errors.Is(err, ErrMalformed) {
					t.Errorf("%d of %d bytes: %v", n, len(b), err)
				}
			}
			if _, err := ParseMessage(append(b, 0)); !errors.Is(err, ErrMalformed) {
				t.Errorf("a byte too many: %v", err)
			}
		})
	}
}

func TestMessageRefused(t *testing.T) {
	ok, err := (&Message{Type: TypeReady, Conn: 1}).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(b []byte){
		"type":    func(b []byte) { b[0] = 0 },
		"mode":    func(b []byte) { b[1] = byte(len(modeNames)) },
		"mode 2":  func(b []byte) { b[1] = 2 },
		"flags":   func(b []byte) { b[3] = 0x80 },
		"size":    func(b []byte) { b[30] = 1 },
		"text":    func(b []byte) { b[32] = 1 },
		"value":   func(b []byte) { b[34] = 1 },
		"address": func(b []byte) { b[headerLen] = 5 },
	} {
		b := append([]byte(nil), ok...)
		f(b)
		if _, err := ParseMessage(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, m := range map[string]Message{
		"text":  {Type: TypeHello, Text: strings.Repeat("x", MaxText+1)},
		"value": {Type: TypeResult, Value: make([]byte, MaxValue+1)},
		"zone":  {Type: TypeConnect, Remote: netip.MustParseAddrPort("[fe80::1%eth0]:1")},
	} {
		if b, err := m.AppendBinary([]byte{7}); err == nil || len(b) != 1 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, tt := range golden {
		b, err := tt.m.AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		b2, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		m2, err := ParseMessage(b2)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, m2, cmpAddr); diff != "" {
			t.Fatal(diff)
		}
	})
}
