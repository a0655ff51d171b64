// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smcr/userstack/wire"
)

var long = flag.Bool("long", false, "run what waits for more than ten minutes (TestKernelIdle)")

// kernelIdle is how long a server's link group lives on in Linux without
// connections (net/smc/smc_core.c).
const kernelIdle = 600 * time.Second

// TestKernelIdle waits until a kernel's server ends its idle link group: our
// client gives its half up in order.
func TestKernelIdle(t *testing.T) {
	if !*long {
		t.Skip("takes eleven minutes: go test ./internal/interop -run TestKernelIdle -long -timeout 20m")
	}
	kernel, user := newBedOf(t, setup{devices: 1, options: []string{"--group-idle", "1h"}})
	messages := newCapture(t, kernel.Guest, "k0")
	messages.start(t)
	from := messages.size()
	at := netip.AddrPortFrom(netip.MustParseAddr(kernel.addr), 7100)
	stop := kernel.start(t, "listening", "serve", at.String())
	user.connect(t, "echo", at)
	stop()
	begin := time.Now()
	for _, s := range []*side{kernel, user} {
		if n := len(query[linkGroup](t, s, "linkgroup", "list")); n != 1 {
			t.Fatalf("%s: %d link groups, want 1", s.backend, n)
		}
	}
	const late = 90 * time.Second
	for len(query[linkGroup](t, user, "linkgroup", "list")) > 0 {
		if time.Since(begin) > kernelIdle+late {
			t.Fatalf("our link group is there after %v", time.Since(begin))
		}
		time.Sleep(time.Second)
	}
	took := time.Since(begin)
	t.Logf("the kernel's server ended the link group after %v", took.Round(time.Second))
	if took < kernelIdle-late {
		t.Errorf("the link group ended after %v, want %v or little more", took, kernelIdle)
	}
	groupsGone(t, kernel, user)
	var ends []string
	for _, f := range messages.since(t, from) {
		if m, ok := f.llc.(wire.DeleteLink); ok {
			ends = append(ends, fmt.Sprintf("%v all %v orderly %v: %v", f.from, m.All, m.Orderly, m.Reason))
		}
	}
	t.Logf("%q", ends)
	theirs := fmt.Sprintf("%s all true orderly true: %v", kernelAddr, wire.DeleteLinkProgram)
	if len(ends) == 0 || ends[0] != theirs {
		t.Errorf("DELETE LINK messages %q, want first %q", ends, theirs)
	}
	works(t, kernel, user, 7110)
	for line := range strings.Lines(user.stop(t, user.stack).Stderr) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Errorf("our log: %s", line)
		}
	}
}
