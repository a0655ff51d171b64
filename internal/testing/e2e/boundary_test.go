// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"
)

// TestWireNginxCurl has programs that know nothing of SMC, and no launcher: the stacks take their
// connections at the devices.
func TestWireNginxCurl(t *testing.T) {
	l := newLab(t, "nginx", "curl", "tshark")
	l.wired = true
	l.serve(l.A)
	l.serve(l.B)
	size := int64(1 << 30)
	if testing.Short() {
		size = 64 << 20
	}
	nginx, digest := l.nginx(t.TempDir(), size)
	for _, host := range []string{l.A.Addr(), "[" + l.A.Addr6() + "]"} {
		w := l.watch()
		start := time.Now()
		if got := l.curl(4*time.Minute, "http://"+host+"/big"); got != digest {
			t.Errorf("curl received the digest %s, want %s", got, digest)
		}
		t.Logf("%d MiB in %v", size>>20, time.Since(start).Round(time.Millisecond))
		s := w.stop(t)
		s.wantSMC(t, 1, size)
		s.wantDissection(t)
	}
	terminate(t, nginx)
	l.wantNoConnections(l.A, l.B)
}
