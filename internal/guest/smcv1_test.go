// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
	"testing"
)

// TestTakeRoCEv2 changes the real module, and refuses others.
func TestTakeRoCEv2(t *testing.T) {
	if err := Available(); err != nil {
		Check(t, err)
	}
	k, err := FindKernel(t.Context())
	Check(t, err)
	module := func(name string) []byte {
		b, err := k.module(t.Context(), name)
		Check(t, err)
		return b
	}
	smc := module("smc")
	bare, err := unsigned(smc)
	if err != nil || len(bare) >= len(smc) || !bytes.HasPrefix(smc, bare) {
		t.Fatalf("%d of %d bytes without signature, %v", len(bare), len(smc), err)
	}
	keep := bytes.Clone(smc)
	got, err := takeRoCEv2(smc)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(smc, keep) {
		t.Error("the argument was changed")
	}
	var changed []int
	for i := range bare {
		if got[i] != bare[i] {
			changed = append(changed, i)
		}
	}
	if len(got) != len(bare) || len(changed) != 1 || bare[changed[0]] != gidRoCEv1 || got[changed[0]] != gidRoCEv2 {
		t.Errorf("%d bytes of %d, changed at %#x", len(got), len(bare), changed)
	}
	for _, c := range []struct {
		name   string
		module []byte
		want   string
	}{
		{"changed already", got, "compares 0 times with 1 and 2 times with 2"},
		{"another module", module("smc_diag"), "no function smc_ib_determine_gid"},
		{"cut", bare[:len(bare)/2], "module smc"},
		{"no ELF file", []byte("module"), "module smc"},
		{"long signature", []byte("x" + "\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff" + signatureMagic), "longer than the file"},
		{"no signature", []byte(signatureMagic), "cut short"},
	} {
		if b, err := takeRoCEv2(c.module); err == nil || !strings.Contains(err.Error(), c.want) || b != nil {
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
