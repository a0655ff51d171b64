// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// TestNginxCurl has a server and a client that know nothing of this.
func TestNginxCurl(t *testing.T) {
	netnstest.Require(t, "nginx", "curl")
	t.Parallel()
	b := newBed(t, splice)
	dir := t.TempDir()
	size := 1 << 30
	if testing.Short() {
		size = 64 << 20
	}
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	want := sha256.Sum256(data)
	b.must(os.WriteFile(filepath.Join(dir, "data"), data, 0o644))
	b.must(os.Chmod(dir, 0o755))
	conf := filepath.Join(dir, "nginx.conf")
	b.must(os.WriteFile(conf, fmt.Appendf(nil, `user root; daemon off; pid %[1]s/pid; error_log stderr;
events {}
http { access_log off; sendfile on; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  server { listen 80; listen [::]:80; root %[1]s; } }`, dir), 0o644))
	server, err := b.B.Start(b.B.Command(t.Context(), "nginx", "-c", conf, "-e", "stderr"))
	b.must(err)
	defer server.Kill()
	b.must(b.B.WaitListen(80, testkind.Patience))
	for i, host := range []string{b.B.Addr(), "[" + b.B.Addr6() + "]"} {
		script := fmt.Sprintf("curl -sS --fail http://%s/data | sha256sum", host)
		out, err := b.A.Command(t.Context(), "sh", "-c", script).CombinedOutput()
		if got, _, _ := strings.Cut(string(out), " "); err != nil || got != hex.EncodeToString(want[:]) {
			t.Fatalf("%v: %s", err, out)
		}
		b.wantTaken(int64(i+1), int64(i+1))
	}
	b.gone()
}

// TestRedis has fifty connections with many small messages.
func TestRedis(t *testing.T) {
	netnstest.Require(t, "redis-server", "redis-benchmark")
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	server, err := b.B.Start(b.B.Command(t.Context(), "redis-server", "--port", "6379", "--bind", b.B.Addr(), "--protected-mode", "no", "--save", "", "--dir", t.TempDir()))
	b.must(err)
	defer server.Kill()
	b.must(server.WaitOutput("eady to accept connections", testkind.Patience))
	requests := "20000"
	if testing.Short() {
		requests = "5000" // a hundred on each connection
	}
	out, err := b.A.Command(t.Context(), "redis-benchmark", "-h", b.B.Addr(), "-q", "-n", requests, "-c", "50", "-t", "ping,set,get").CombinedOutput()
	if s := string(out); err != nil || strings.Count(s, "requests per second") < 3 || strings.Contains(s, "rror") {
		t.Fatalf("%v: %s", err, out)
	}
	if b.taken[0].Load() < 150 || b.taken[0].Load() != b.taken[1].Load() {
		t.Errorf("the hosts took %d and %d connections", b.taken[0].Load(), b.taken[1].Load())
	}
	b.gone()
}
