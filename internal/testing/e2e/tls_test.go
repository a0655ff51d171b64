// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTLS: TLS works over SMC-R without changes (RFC 7609, section 5.6). Its handshake is
// carried over RoCE too: TCP carries only CLC messages.
func TestTLS(t *testing.T) {
	const size = 64 << 20
	l := newLab(t, "nginx", "curl", "tshark")
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	digest := writeFile(t, filepath.Join(dir, "big"), size)
	cert := certificate(t, dir, l.A.Addr())
	conf := filepath.Join(dir, "nginx.conf")
	err := os.WriteFile(conf, fmt.Appendf(nil, `
daemon off;
pid %[1]s/nginx.pid;
error_log stderr;
events { worker_connections 64; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	ssl_certificate %[1]s/cert.pem;
	ssl_certificate_key %[1]s/key.pem;
	server { listen %[2]s:443 ssl; root %[1]s; }
}
`, dir, l.A.Addr()), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	nginx := l.under(l.A, "nginx", "-e", "stderr", "-c", conf)
	if err := l.A.WaitListen(443, startTime); err != nil {
		t.Fatal(err, nginx.Log())
	}
	w := l.watch()
	if got := l.curl(time.Minute, "--cacert", cert, "https://"+l.A.Addr()+"/big"); got != digest {
		t.Errorf("curl received the digest %s, want %s", got, digest)
	}
	w.stop(t).wantSMC(t, 1, size)
	terminate(t, nginx)
	wantSummary(t, nginx.Log(), 1)
	l.wantNoConnections(l.A, l.B)
}

// certificate writes cert.pem and key.pem for a server at addr to dir and returns the
// name of cert.pem.
func certificate(t *testing.T, dir, addr string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: addr}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(addr)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert.pem")
}
