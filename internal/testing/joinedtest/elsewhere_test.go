// SPDX-License-Identifier: Apache-2.0

package joinedtest

import (
	"path"
	"strings"
	"testing"
)

// TestElsewhere boots a guest whose kernel has what many test machines have not: the load balancer
// of the kernel (IPVS), and joined connections. There, packets to an address of the host are led
// elsewhere.
func TestElsewhere(t *testing.T) {
	b := newBed(t)
	b.run(t, "modprobe", "-a", "veth", "nf_nat", "nft_nat", "nft_chain_nat", "nft_redir", "nft_masq", "ip_vs", "ip_vs_rr")
	t.Run("Gates", func(t *testing.T) {
		b.passed(t, "smcr/userstack/tcpopt", "^TestNotHere(Segments)?$", "TestNotHereSegments", "TestNotHere")
	})
	t.Run("Routes", func(t *testing.T) {
		b.passed(t, "smcr/userstack/network", "^TestRouteBalanced$", "TestRouteBalanced")
	})
	t.Run("Forged", func(t *testing.T) {
		const dir = "/tmp/programs"
		b.run(t, "mkdir", "-p", "-m", "755", dir)
		for _, pkg := range []string{"smcr/cmd/smcr", "smcr/internal/testing/programs/probe", "smcr/internal/testing/programs/hostile"} {
			b.run(t, "cp", b.program(t, pkg), path.Join(dir, path.Base(pkg)))
		}
		file := b.tests(t, "smcr/internal/testing/e2e")
		out := b.run(t, "env", "SMCR_E2E_PROGRAMS="+dir, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", file, "-test.v", "-test.run", "^TestForged(OwnAddress|Balanced)$")
		t.Log(out)
		if strings.Contains(out, "--- SKIP") || strings.Count(out, "--- PASS: TestForgedOwnAddress/") != 2 || !strings.Contains(out, "--- PASS: TestForgedBalanced ") {
			t.Errorf("a test was skipped:\n%s", out)
		}
	})
}
