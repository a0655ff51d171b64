// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"
)

// realModule returns a module of the guest kernel.
func realModule(t *testing.T, name string) []byte {
	t.Helper()
	if err := Available(); err != nil {
		Check(t, err)
	}
	k, err := WithSMC.Find(t.Context())
	Check(t, err)
	b, err := k.module(t.Context(), name)
	Check(t, err)
	return b
}

// TestChangeSMC changes the real module, with each option and with both.
func TestChangeSMC(t *testing.T) {
	smc := realModule(t, "smc")
	bare, err := unsigned(smc)
	if err != nil || len(bare) >= len(smc) || !bytes.HasPrefix(smc, bare) {
		t.Fatalf("%d of %d bytes without signature, %v", len(bare), len(smc), err)
	}
	// The bytes of the instruction before and after each change.
	gid := [2]string{"\x01", "\x02"}
	server, client := [2]string{"\xf0\x49\x02\x00", "\xdc\x05\x00\x00"}, [2]string{"\xb4\x53\x02\x00", "\xd6\x06\x00\x00"}
	for _, c := range []struct {
		name    string
		options SMCOptions
		want    [][2]string // in the order of their positions in the file
	}{
		{"nothing", SMCOptions{}, nil},
		{"version 1", SMCOptions{Version1: true}, [][2]string{gid}},
		{"idle", SMCOptions{Idle: 6 * time.Second}, [][2]string{server, client, server}},
		{"both", SMCOptions{Version1: true, Idle: 6 * time.Second}, [][2]string{gid, server, client, server}},
	} {
		keep := bytes.Clone(smc)
		got, err := changeSMC(smc, c.options)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !bytes.Equal(smc, keep) {
			t.Errorf("%s: the argument was changed", c.name)
		}
		if len(got) != len(bare) {
			t.Errorf("%s: %d bytes, want %d", c.name, len(got), len(bare))
			continue
		}
		// Each change is one run of bytes with the length of the operand.
		found := map[[2]string]int{}
		total := 0
		for at := 0; at < len(bare); at++ {
			if got[at] == bare[at] {
				continue
			}
			total++
			known := false
			for _, w := range [][2]string{gid, server, client} {
				if end := at + len(w[0]); string(bare[at:end]) == w[0] && string(got[at:end]) == w[1] {
					found[w]++
					at, known = end-1, true
					break
				}
			}
			if !known {
				t.Errorf("%s: byte %#x is %#x, was %#x", c.name, at, got[at], bare[at])
			}
		}
		want := map[[2]string]int{}
		for _, w := range c.want {
			want[w]++
		}
		for w := range found {
			if found[w] != want[w] {
				t.Errorf("%s: % x became % x %d times, want %d", c.name, w[0], w[1], found[w], want[w])
			}
		}
		if total != len(c.want) {
			t.Errorf("%s: %d changes, want %d", c.name, total, len(c.want))
		}
	}
}

// TestChangeSMCRefuses: a module without the expected places is not changed.
func TestChangeSMCRefuses(t *testing.T) {
	smc := realModule(t, "smc")
	both := SMCOptions{Version1: true, Idle: 6 * time.Second}
	changed, err := changeSMC(smc, both)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		module  []byte
		options SMCOptions
		want    string
	}{
		{"version 1 already", changed, SMCOptions{Version1: true}, "compares 0 times with 1 and 2 times with 2"},
		{"shortened already", changed, SMCOptions{Idle: time.Second}, "has the number 150000 0 times and 152500 0 times"},
		{"another module", realModule(t, "smc_diag"), SMCOptions{Version1: true}, "no function smc_ib_determine_gid"},
		{"another module, idle", realModule(t, "smc_diag"), SMCOptions{Idle: time.Second}, "no function smc_conn_free"},
		{"no time", smc, SMCOptions{Idle: -time.Second}, "cannot be idle for -1s"},
		{"less than a tick", smc, SMCOptions{Idle: 3 * time.Millisecond}, "cannot be idle for 3ms"},
		{"between two ticks", smc, SMCOptions{Idle: 6 * time.Millisecond}, "cannot be idle for 6ms"},
		{"longer than Linux", smc, SMCOptions{Idle: time.Hour}, "cannot be idle for 1h"},
		{"cut", changed[:len(changed)/2], both, "module smc"},
		{"no ELF file", []byte("module"), both, "module smc"},
		{"long signature", []byte("x" + "\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff" + signatureMagic), both, "longer than the file"},
		{"no signature", []byte(signatureMagic), both, "cut short"},
	} {
		if b, err := changeSMC(c.module, c.options); err == nil || !strings.Contains(err.Error(), c.want) || b != nil {
			t.Errorf("%s: %d bytes, error %v, want %q", c.name, len(b), err, c.want)
		}
	}
}

func TestCompares(t *testing.T) {
	for _, c := range []struct {
		code string
		want int
	}{
		{"\x83\xf8\x01", 1},             // cmp $1,%eax
		{"\x90\x83\xfb\x01\x90", 1},     // cmp $1,%ebx
		{"\x83\xf8\x02", 0},             // cmp $2,%eax
		{"\x83\xc0\x01", 0},             // add $1,%eax
		{"\x83\x78\x20\x01", 0},         // cmpl $1,0x20(%rax)
		{"\x83\xf8\x01\x83\xf9\x01", 2}, // two of them
		{"\x83\xf8", 0},
		{"", 0},
	} {
		if got := compares([]byte(c.code), 1); len(got) != c.want {
			t.Errorf("% x: at %v, want %d", c.code, got, c.want)
		}
	}
}

func TestMoves(t *testing.T) {
	const n = 0x249f0
	number := string(binary.LittleEndian.AppendUint32(nil, n))
	for _, c := range []struct {
		code string
		want int
	}{
		{"\xb8" + number, 1},                   // mov $n,%eax
		{"\x90\xbf" + number + "\x90", 1},      // mov $n,%edi
		{"\x41\xba" + number, 1},               // mov $n,%r10d
		{"\xb9\xf1\x49\x02\x00", 0},            // mov $n+1,%ecx
		{"\x3d" + number, 0},                   // cmp $n,%eax
		{"\xc7\x00" + number, 0},               // movl $n,(%rax)
		{"\xb8" + number + "\xb9" + number, 2}, // two of them
		{"\xb8\xf0\x49\x02", 0},
		{"", 0},
	} {
		if got := moves([]byte(c.code), n); len(got) != c.want {
			t.Errorf("% x: at %v, want %d", c.code, got, c.want)
		}
	}
}
