// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// needRXE skips a test where the kernel has no soft-RoCE.
func needRXE(t *testing.T) {
	t.Helper()
	if os.Getenv("SMCR_TEST_RXE") == "" {
		t.Skip("needs a kernel with rdma_rxe and python3-pyverbs: `go test ./internal/testing/interop -run TestSoftRoCE` runs it in one")
	}
}

// rxeOn makes a veth pair in the first network namespace, the only one that
// the kernel's soft-RoCE knows, and such a device on it. It returns their names.
func rxeOn(t *testing.T) (netdev, device string) {
	t.Helper()
	netdev = fmt.Sprintf("rg%d", os.Getpid()%100000)
	run(t, "ip", "link", "add", netdev, "type", "veth", "peer", "name", netdev+"p")
	t.Cleanup(func() { exec.Command("ip", "link", "del", netdev).Run() })
	run(t, "ip", "link", "set", netdev, "up")
	run(t, "ip", "link", "set", netdev+"p", "up")
	run(t, "modprobe", "rdma_rxe")
	device = "rxe_" + netdev
	run(t, "rdma", "link", "add", device, "type", "rxe", "netdev", netdev)
	t.Cleanup(func() { exec.Command("rdma", "link", "del", device).Run() })
	return netdev, device
}

// kernelGIDs reads the GID table of a device, without the unused entries at
// its end.
func kernelGIDs(t *testing.T, device string) (table []string) {
	t.Helper()
	dir := filepath.Join("/sys/class/infiniband", device, "ports/1")
	last := 0
	for i := range 32 {
		gid, err := os.ReadFile(fmt.Sprintf("%s/gids/%d", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		typ, err := os.ReadFile(fmt.Sprintf("%s/gid_attrs/types/%d", dir, i))
		if err != nil {
			table = append(table, "-") // EINVAL: not in use
			continue
		}
		table = append(table, strings.TrimSpace(string(gid))+" "+strings.TrimSpace(string(typ)))
		last = i + 1
	}
	return table[:last]
}

// TestKernelGIDs compares the GID table of RoCE version 2 with that of the
// kernel's soft-RoCE on the same netdev, entry for entry, while addresses come
// and go.
func TestKernelGIDs(t *testing.T) {
	testkind.System(t)
	needRXE(t)
	netdev, device := rxeOn(t)
	f, err := newFacts()
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	d := &Device{port: port{types: []rdmaverbs.GIDType{rdmaverbs.RoCEv2}}}
	ours := func() (table []string) {
		i, err := f.byName(netdev)
		if err != nil {
			t.Fatal(err)
		}
		d.port.set(*i)
		for _, e := range d.port.gids {
			if e.GID.IsZero() {
				table = append(table, "-")
			} else {
				table = append(table, e.GID.String()+" RoCE v2")
			}
		}
		return table
	}
	for _, step := range []string{
		"", "add 10.9.1.1/24", "add 10.9.2.1/24", "add fd09::1/64 nodad", "add 169.254.9.9/16", "add fe80::9/64 nodad",
		"del 10.9.2.1/24", "add 10.9.3.1/24", "del fd09::1/64", "del 10.9.1.1/24", "add fd09::2/64 nodad",
	} {
		if step != "" {
			verb, rest, _ := strings.Cut(step, " ")
			run(t, "ip", append([]string{"addr", verb, "dev", netdev}, strings.Fields(rest)...)...)
		}
		var diff string
		if err := netnstest.Until(testkind.Patience, func() error {
			if diff = cmp.Diff(kernelGIDs(t, device), ours()); diff != "" {
				return errors.New(diff)
			}
			return nil
		}); err != nil {
			t.Fatalf("after %q (-kernel +ours)\n%v", step, diff)
		}
	}
	t.Logf("%q", ours())
}

// TestKernelHasPort: if the kernel's soft-RoCE has the UDP port, version 1
// still works. If only version 2 is wanted, the error says what to do.
func TestKernelHasPort(t *testing.T) {
	testkind.System(t)
	needRXE(t)
	netdev, _ := rxeOn(t)
	d, err := New().Open(t.Context(), namePrefix+netdev)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	gids, err := d.GIDs(1)
	if err != nil || len(gids) == 0 {
		t.Fatalf("GID table %v, %v", gids, err)
	}
	for _, g := range gids {
		if g.Type != rdmaverbs.RoCEv1 {
			t.Errorf("GID %v", g)
		}
	}
	_, err = New(WithGIDTypes(rdmaverbs.RoCEv2)).Open(t.Context(), namePrefix+netdev)
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "modprobe -r rdma_rxe") {
		t.Errorf("version 2 alone: %v", err)
	}
}
