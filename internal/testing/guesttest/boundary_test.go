// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

// allKernels has TestBoundaryKernels run all tests on all kernels, which takes five minutes each: the processor of a guest
// is emulated.
const allKernels = "SMCR_TEST_ALL_KERNELS"

// boundaryTime bounds the tests of a package in a guest, whose processor is emulated.
const boundaryTime = 10 * time.Minute

// testModules are those of the kernel that the tests need beside [guest.Guest.LoadStack].
var testModules = []string{"tun", "bridge", "sch_netem", "tls"}

var passedRE = regexp.MustCompile(`(?m)^--- PASS`)

// TestBoundaryKernels runs tests of the boundary on the oldest kernel on which it is to run: what its verifier takes, and
// what it has of TCP_REPAIR. With allKernels, it runs all of them, on all kernels.
func TestBoundaryKernels(t *testing.T) {
	kernels, tests := map[string]*guest.Series{"oldest": &guest.Oldest}, "^(TestTaken|TestEnds|TestForged|TestTakeover|TestCopied|TestPlaces|TestBuffers|TestCableOut|TestListen|TestListenTakeover|TestUndecidedLong|TestUndecidedOfStrangers|TestBacklogs|TestSharesOfUsers|TestSharesOfSubordinates|TestClosedEarly|TestStaysPlain|TestForgedByContainer|TestByPath|TestShift|TestShiftBusy|TestRun|TestHandOver|TestKernelTLS)$"
	if os.Getenv(allKernels) != "" {
		kernels["with SMC"], tests = &guest.WithSMC, "."
	}
	for name, series := range kernels {
		t.Run(name, func(t *testing.T) {
			g := guest.New(t, guest.Config{Series: series, Limit: 3 * boundaryTime, Memory: 3072})
			t.Logf("Linux %s", g.Kernel())
			ctx, cancel := context.WithTimeout(t.Context(), 2*boundaryTime)
			defer cancel()
			if err := g.LoadStack(ctx); err != nil {
				t.Fatal(err)
			}
			for _, m := range testModules {
				if _, err := g.Run(ctx, "modprobe", m); err != nil {
					t.Fatal(err)
				}
			}
			for _, pkg := range []string{"divert", "attach"} {
				file := filepath.Join(t.TempDir(), pkg+".test")
				if err := guest.BuildTest(ctx, "smcr/userstack/"+pkg, file); err != nil {
					t.Fatal(err)
				}
				program, err := g.Push(file)
				if err != nil {
					t.Fatal(err)
				}
				r, err := g.Run(ctx, program, "-test.short", "-test.v", "-test.run", tests, "-test.timeout", boundaryTime.String())
				if n := len(passedRE.FindAllString(r.Stdout, -1)); err != nil || n == 0 {
					t.Errorf("%s: %d tests passed, %v\n%s", pkg, n, err, r.Stdout)
				} else {
					t.Logf("%s: %d tests passed", pkg, n)
				}
			}
		})
	}
}
