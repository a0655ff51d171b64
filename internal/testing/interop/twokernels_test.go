// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"path/filepath"
	"testing"

	"smcr/internal/testing/guest"
)

// TestTwoKernels records the behaviour of two Linux kernels, each in a guest, with the
// programs and steps of TestBehaviour. TestBehaviour compares with its files.
func TestTwoKernels(t *testing.T) {
	t.Parallel()
	if !*updateKernels {
		t.Skip("records reference data: go test ./internal/testing/interop -run TestTwoKernels -update-kernels")
	}
	a, b := guest.Pair(t)
	server, client := newKernel(t, a, kernelAddr), newKernel(t, b, userAddr)
	messages := newCapture(t, a, "eth0")
	messages.start(t)
	for i, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			got := b.observe(t, client, server, messages, uint16(6000+i), b.limit)
			if err := os.WriteFile(filepath.Join(recorded, b.name+".txt"), []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// newKernel configures SMC in one of two linked guests.
func newKernel(t *testing.T, g *guest.Guest, addr string) *side {
	t.Helper()
	b := &bed{Guest: g}
	b.programs(t)
	s := &side{bed: b, backend: "kernel", addr: addr, sockets: []string{"-smc"}}
	if err := g.LoadSMC(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.AddAddr(t.Context(), "eth0", addr+"/24"); err != nil {
		t.Fatal(err)
	}
	if err := g.AddRXE(t.Context(), "rxe0", "eth0"); err != nil {
		t.Fatal(err)
	}
	s.smcrun(t, "pnet", "add", "SMC1", "-I", "eth0", "-D", "rxe0")
	s.smcrun(t, "ueid", "add", eid)
	return s
}
