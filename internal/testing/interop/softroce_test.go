// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/netnstest"
)

// inGuest are the tests of package softroce that need a kernel with rdma_rxe and 8021q.
var inGuest = []string{"TestKernelRXE", "TestKernelGIDs", "TestKernelHasPort", "TestWireVLAN"}

// TestSoftRoCE runs tests of package softroce with the kernel's soft-RoCE in a guest.
func TestSoftRoCE(t *testing.T) {
	t.Parallel()
	guest.SkipShort(t) // also without pyverbs, which only `make test-all` installs
	netnstest.Require(t, "nsenter", "rdma")
	if exec.Command("/usr/bin/python3", "-c", "import pyverbs").Run() != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs python3-pyverbs: run `sudo scripts/setup-test-tools`")
		}
		t.Skip("needs python3-pyverbs: run `sudo scripts/setup-test-tools`")
	}
	g := guest.New(t, guest.Config{Name: "rxe"})
	dir := filepath.Join(g.Share(), "softroce")
	if err := os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS("../../../rdmaverbs/softroce/testdata")); err != nil {
		t.Fatal(err)
	}
	if err := guest.BuildTest(t.Context(), "smcr/rdmaverbs/softroce", filepath.Join(dir, "softroce.test")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := g.Run(ctx, "modprobe", "-a", "rdma_rxe", "8021q"); err != nil {
		t.Fatal(err)
	}
	r, err := g.Run(ctx, "env", "-C", guest.SharePath+"/softroce", "CI=true", "SMCR_TEST_RXE=1", "./softroce.test",
		"-test.v", "-test.run", "^("+strings.Join(inGuest, "|")+")$")
	t.Logf("%s%s", r.Stdout, r.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(r.Stdout, "\n")
	for _, name := range inGuest {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "--- PASS: "+name+" ") }) {
			t.Errorf("%s did not pass", name)
		}
	}
}
