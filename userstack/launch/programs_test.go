// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// Unmodified programs, as a user would launch them.

// need skips the test without the program, unless CI has to have it.
func needProgram(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing", name)
			}
			t.Skipf("%s is missing: apt-get install %s", name, name)
		}
	}
}

// fileServer serves one big file and checks what is posted to it.
func fileServer(t testing.TB, size int) (url string, body []byte) {
	t.Helper()
	body = make([]byte, size)
	rand.New(rand.NewSource(1)).Read(body)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			got, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%v %v", bytes.Equal(got, body), err)
			return
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, body
}

// modes are the ways in which connections can end up.
func modes(t *testing.T, f func(t *testing.T, stack *fakeStack)) {
	for _, m := range []struct {
		name  string
		stack *fakeStack
	}{
		{"smc", &fakeStack{}},
		{"slow", &fakeStack{estDelay: 25 * ms, clcDelay: 25 * ms}},
		{"declined", &fakeStack{decline: "no link", clcDelay: 10 * ms}},
		{"no peer", &fakeStack{noPeer: true, estDelay: 25 * ms}},
		{"native", &fakeStack{notCandidate: true}},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			f(t, m.stack.fresh())
		})
	}
}

func wantSMC(t *testing.T, stack *fakeStack, res result, atLeast uint64) {
	t.Helper()
	if stack.notCandidate || stack.noPeer || stack.decline != "" {
		return
	}
	if n := res.stats.ByMode[broker.ModeSMCR]; n < atLeast {
		t.Errorf("%d SMC connections, want at least %d: %+v", n, atLeast, res.stats)
	}
}

func TestCurl(t *testing.T) {
	testkind.System(t)
	needProgram(t, "curl")
	url, body := fileServer(t, 3<<20)
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	modes(t, func(t *testing.T, stack *fakeStack) {
		res := launched(t, stack, "", nil, "curl", "-sS", "--fail", url+"/a", "--next", "-sS", "--tcp-fastopen", url+"/b")
		if res.status != 0 || res.out != string(body)+string(body) {
			t.Fatalf("status %d, %d bytes", res.status, len(res.out))
		}
		wantSMC(t, stack, res, 1)
		res = launched(t, stack.fresh(), "", nil, "curl", "-sS", "--data-binary", "@"+file, url)
		if res.out != "true <nil>" {
			t.Errorf("post: %q", res.out)
		}
	})
	t.Run("refused", func(t *testing.T) {
		if res := launched(t, &fakeStack{}, "", nil, "curl", "-sS", "http://"+closedPort(t)); res.status != 7 {
			t.Errorf("status %d, want 7\n%s", res.status, res.out)
		}
	})
}

const pythonClient = `
import asyncio, hashlib, subprocess, sys, threading, urllib.request, socket
url, digest = sys.argv[1:3]
def check(b):
    assert hashlib.sha256(b).hexdigest() == digest, len(b)
check(urllib.request.urlopen(url, timeout=60).read())

async def get():
    host, port = url[7:].split(':')
    r, w = await asyncio.open_connection(host, int(port))
    assert w.get_extra_info('peername') == (host, int(port)), w.get_extra_info('peername')
    w.write(b'GET / HTTP/1.0\r\n\r\n')
    await w.drain()
    data = await r.read()
    w.close()
    await w.wait_closed()
    check(data.split(b'\r\n\r\n', 1)[1])
async def many():
    await asyncio.gather(*[get() for _ in range(8)])
asyncio.run(many())

threads = [threading.Thread(target=lambda: check(urllib.request.urlopen(url, timeout=60).read())) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]

check(subprocess.run([sys.executable, '-c', 'import sys,urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())', url], stdout=subprocess.PIPE, check=True).stdout)

s = socket.create_connection((url[7:].split(':')[0], int(url.rsplit(':', 1)[1])), timeout=60)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
assert s.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x10
s.settimeout(0.05)
try:
    s.recv(1); assert False
except TimeoutError:
    pass
s.close()
print('done')
`

func TestPythonClient(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	url, body := fileServer(t, 1<<20)
	modes(t, func(t *testing.T, stack *fakeStack) {
		res := launched(t, stack, "", nil, "python3", "-c", pythonClient, url, sha(body))
		if res.status != 0 || res.out != "done\n" {
			t.Fatalf("status %d\n%s", res.status, res.out)
		}
		wantSMC(t, stack, res, 15)
	})
}

func TestPythonServer(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	dir := t.TempDir()
	body := bytes.Repeat([]byte("smc "), 1<<18)
	if err := os.WriteFile(filepath.Join(dir, "f"), body, 0o600); err != nil {
		t.Fatal(err)
	}
	modes(t, func(t *testing.T, stack *fakeStack) {
		stack.t = t
		p := start(t, Config{Dir: dir, Broker: stack.client(), Argv: []string{"python3", "-u", "-c", `
import http.server, os, signal, sys, threading
s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
print(s.server_port)
signal.signal(signal.SIGTERM, lambda *a: threading.Thread(target=s.shutdown).start())
sys.stderr = open(os.devnull, 'w')
s.serve_forever()
print('stopped')
`}})
		port := p.line(t)
		for range 4 {
			got := httpGet(t, "http://127.0.0.1:"+port+"/f")
			if !bytes.Equal(got, body) {
				t.Errorf("%d bytes, want %d", len(got), len(body))
			}
		}
		_ = syscall.Kill(p.pid(t), syscall.SIGTERM)
		res := p.wait(t)
		if res.status != 0 || res.out != "stopped\n" {
			t.Errorf("status %d, %q", res.status, res.out)
		}
		wantSMC(t, stack, res, 4)
	})
}

func httpGet(t testing.TB, url string) []byte {
	t.Helper()
	c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %s, %d bytes, %v", url, resp.Status, len(b), err)
	}
	return b
}

// freePort returns a port that was free a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	_, port, err := net.SplitHostPort(closedPort(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func awaitPort(t testing.TB, port string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * ms) {
		c, err := net.Dial("tcp4", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
			return
		}
	}
	t.Fatal("the program does not listen")
}

func TestNginx(t *testing.T) {
	testkind.System(t)
	needProgram(t, "nginx")
	url, body := fileServer(t, 1<<20)
	modes(t, func(t *testing.T, stack *fakeStack) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // workers of another user read it
			t.Fatal(err)
		}
		port := freePort(t)
		static := bytes.Repeat([]byte("static file "), 100<<10)
		conf := fmt.Sprintf(`
daemon off; worker_processes 2; pid %[1]s/pid; error_log stderr warn; user root;
events { worker_connections 256; }
http {
  access_log off; sendfile on; tcp_nopush on;
  client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  upstream up { server %[3]s; keepalive 4; }
  server {
    listen 127.0.0.1:%[2]s; root %[1]s;
    location /up { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }
    location /who { return 200 $remote_addr; }
  }
}`, dir, port, strings.TrimPrefix(url, "http://"))
		for name, b := range map[string][]byte{"conf": []byte(conf), "file": static} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil { //nolint:gosec // see above
				t.Fatal(err)
			}
		}
		stack.t = t
		p := start(t, Config{Argv: []string{"nginx", "-p", dir, "-c", filepath.Join(dir, "conf")}, Broker: stack.client()})
		awaitPort(t, port)
		errc := make(chan error, 8)
		for range cap(errc) {
			go func() {
				errc <- func() error {
					for path, want := range map[string][]byte{"file": static, "up": body, "who": []byte("127.0.0.1")} {
						c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
						resp, err := c.Get("http://127.0.0.1:" + port + "/" + path)
						if err != nil {
							return err
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil || !bytes.Equal(got, want) {
							return fmt.Errorf("%s: %s, %d bytes, want %d (%v)", path, resp.Status, len(got), len(want), err)
						}
					}
					return nil
				}()
			}()
		}
		for range cap(errc) {
			if err := <-errc; err != nil {
				t.Error(err)
			}
		}
		_ = syscall.Kill(p.pid(t), syscall.SIGQUIT)
		res := p.wait(t)
		if res.status != 0 {
			t.Errorf("status %d\n%s", res.status, res.out)
		}
		wantSMC(t, stack, res, 25)
	})
}

func TestRedis(t *testing.T) {
	testkind.System(t)
	needProgram(t, "redis-server", "redis-cli", "redis-benchmark")
	modes(t, func(t *testing.T, stack *fakeStack) {
		port := freePort(t)
		stack.t = t
		p := start(t, Config{Broker: stack.client(), Argv: []string{
			"redis-server", "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir(),
			"--bind", "127.0.0.1", "--daemonize", "no",
		}})
		awaitPort(t, port)
		client := stack.fresh()
		if res := launched(t, client, "", nil, "redis-cli", "-p", port, "set", "key", "value"); res.out != "OK\n" {
			t.Errorf("set: %q", res.out)
		}
		res := launched(t, client.fresh(), "", nil, "redis-benchmark", "-p", port, "-n", "2000", "-c", "20", "-q", "-t", "set,get", "-d", "1000")
		if res.status != 0 || !strings.Contains(res.out, "GET") {
			t.Errorf("benchmark: status %d, %q", res.status, res.out)
		}
		wantSMC(t, client, res, 20)
		if res := launched(t, client.fresh(), "", nil, "redis-cli", "-p", port, "get", "key"); res.out != "value\n" {
			t.Errorf("get: %q", res.out)
		}
		_ = syscall.Kill(p.pid(t), syscall.SIGTERM)
		sres := p.wait(t)
		if sres.status != 0 {
			t.Errorf("status %d\n%s", sres.status, sres.out)
		}
		wantSMC(t, stack, sres, 22)
	})
}

func TestIperf(t *testing.T) {
	testkind.System(t)
	needProgram(t, "iperf3")
	modes(t, func(t *testing.T, stack *fakeStack) {
		port := freePort(t)
		stack.t = t
		p := start(t, Config{Argv: []string{"iperf3", "-s", "-1", "-p", port, "--forceflush"}, Broker: stack.client()})
		for !strings.Contains(p.line(t), "listening") {
		}
		client := stack.fresh()
		res := launched(t, client, "", nil, "iperf3", "-c", "127.0.0.1", "-p", port, "-n", "20M", "-P", "2")
		if res.status != 0 || !strings.Contains(res.out, "receiver") {
			t.Fatalf("status %d\n%s", res.status, res.out)
		}
		wantSMC(t, client, res, 3)
		sres := p.wait(t)
		if sres.status != 0 {
			t.Errorf("server: status %d\n%s", sres.status, sres.out)
		}
		wantSMC(t, stack, sres, 3)
	})
}

func TestShell(t *testing.T) {
	testkind.System(t)
	needProgram(t, "curl")
	url, body := fileServer(t, 1<<16)
	res := launched(t, &fakeStack{}, "", nil, "sh", "-c",
		`curl -sS "$0" | (cat; :) | { exec sha256sum; } & curl -sS "$0" | sha256sum; wait; cat /dev/stdin | wc -c`, url)
	want := strings.Repeat(sha(body)+"  -\n", 2) + "0\n"
	if res.out != want || res.stats.ByMode[broker.ModeSMCR] != 2 {
		t.Errorf("%q, want %q; %+v", res.out, want, res.stats)
	}
}

// A daemon outlives the program, and Run lasts as long as it does.
func TestDaemon(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "late")
	start := time.Now()
	res := launched(t, &fakeStack{}, "", nil, "python3", "-c", `
import os, socket, sys, time
if os.fork(): os._exit(3)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(0.3)
host, port = sys.argv[1].split(':')
print(socket.create_connection((host, int(port))).recv(4).decode())
`, addr)
	if res.status != 3 || res.out != "late\n" || res.stats.ByMode[broker.ModeSMCR] != 1 {
		t.Errorf("status %d, %q, %+v", res.status, res.out, res.stats)
	}
	if d := time.Since(start); d < 300*ms {
		t.Errorf("Run returned after %v", d)
	}
}

// A launcher inside a launcher lets the outer one do the work.
func TestNested(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	probe(t, &fakeStack{}, "nested", addr)
}

func probeNested(args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status, _, err := Run(ctx, Config{Argv: []string{exe, args[0], "smc"}, Env: []string{probeEnv + "=blocking"}})
	if err != nil || status != 0 {
		return fmt.Errorf("status %d, %v", status, err)
	}
	return nil
}
