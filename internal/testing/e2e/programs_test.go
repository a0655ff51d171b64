// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// writeFile fills a file with size random bytes and returns their digest.
func writeFile(t testing.TB, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(rand.NewChaCha8([32]byte{1}), size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// curl downloads url on host B under smcr run and returns the digest of the output of
// curl.
func (l *lab) curl(limit time.Duration, args ...string) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), limit)
	defer cancel()
	argv := append([]string{"curl", "--silent", "--show-error", "--fail", "--noproxy", "*"}, args...)
	if !l.bare {
		argv = underArgv(argv...)
	}
	cmd := l.B.Command(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	var h hash.Hash = sha256.New()
	cmd.Stdout, cmd.Stderr = h, &stderr
	if err := cmd.Run(); err != nil {
		l.t.Fatalf("curl %v: %v\n%s", args, err, &stderr)
	}
	if !l.bare {
		wantSummary(l.t, stderr.String(), 1)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// nginx starts nginx on host A with one file, big, of size random bytes in dir. It
// returns the digest of the file.
func (l *lab) nginx(dir string, size int64) (nginx *netnstest.Process, digest string) {
	t := l.t
	t.Helper()
	// The workers of nginx run as another user.
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	digest = writeFile(t, filepath.Join(dir, "big"), size)
	conf := filepath.Join(dir, "nginx.conf")
	err := os.WriteFile(conf, fmt.Appendf(nil, `
daemon off;
worker_processes 2;
pid %[1]s/nginx.pid;
error_log stderr;
events { worker_connections 256; }
http {
	access_log off;
	sendfile on;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server { listen %[2]s:80; listen [%[3]s]:80; root %[1]s; }
}
`, dir, l.A.Addr(), l.A.Addr6()), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	nginx = l.under(l.A, "nginx", "-e", "stderr", "-c", conf)
	if err := l.A.WaitListen(80, startTime); err != nil {
		t.Fatal(err, nginx.Log())
	}
	return nginx, digest
}

func TestNginxCurl1GiB(t *testing.T) {
	const size = 1 << 30
	l := newLab(t, "nginx", "curl", "tshark")
	// This is version 1 of SMC, because tshark knows its LLC messages.
	l.serve(l.A)
	l.serve(l.B)
	dir := t.TempDir()
	nginx, digest := l.nginx(dir, size)
	w := l.watch()
	start := time.Now()
	if got := l.curl(4*time.Minute, "http://"+l.A.Addr()+"/big"); got != digest {
		t.Errorf("curl received the digest %s, want %s", got, digest)
	}
	t.Logf("1 GiB in %v", time.Since(start).Round(time.Millisecond))
	s := w.stop(t)
	s.wantSMC(t, 1, size)
	s.wantDissection(t)

	// The same over IPv6, in parts over several connections, with keep-alive.
	w = l.watch()
	const part = 1 << 20
	url := "http://[" + l.A.Addr6() + "]/big"
	want := sha256.New()
	f, err := os.Open(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(want, io.NewSectionReader(f, 0, 3*part)); err != nil {
		t.Fatal(err)
	}
	got := l.curl(time.Minute, "-r", "0-1048575", url, "--next", "-sSf", "-r", "1048576-2097151", url, "--next", "-sSf", "-r", "2097152-3145727", url)
	if got != hex.EncodeToString(want.Sum(nil)) {
		t.Errorf("parts of the file over IPv6 have the digest %s", got)
	}
	w.stop(t).wantSMC(t, 1, 3*part)
	terminate(t, nginx)
	wantSummary(t, nginx.Log(), 2)
	l.wantNoConnections(l.A, l.B)
}

func TestIperf3(t *testing.T) {
	l := newLab(t, "iperf3")
	for _, args := range [][]string{nil, {"-P", "8"}, {"-R"}, {"-P", "8", "-R"}} {
		name := strings.Join(args, "")
		if name == "" {
			name = "single"
		}
		t.Run(name, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			server := l.under(l.A, "iperf3", "-s", "-1", "-B", l.A.Addr())
			if err := l.A.WaitListen(5201, startTime); err != nil {
				t.Fatal(err, server.Log())
			}
			w := l.watch()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			argv := underArgv(append([]string{"iperf3", "-c", l.A.Addr(), "-t", "2", "--json"}, args...)...)
			out, err := l.B.Output(ctx, argv[0], argv[1:]...)
			if err != nil {
				t.Fatalf("%v\n%s\nserver:\n%s", err, out, server.Log())
			}
			var report struct {
				Error string
				End   struct {
					Sent     struct{ Bytes int64 } `json:"sum_sent"`
					Received struct {
						Bytes int64
						Bps   float64 `json:"bits_per_second"`
					} `json:"sum_received"`
				}
			}
			if err := json.Unmarshal([]byte(out), &report); err != nil || report.Error != "" {
				t.Fatalf("iperf3: %v %s\n%s", err, report.Error, out)
			}
			if report.End.Received.Bytes == 0 {
				t.Errorf("iperf3 received nothing: %s", out)
			}
			t.Logf("%.2f Gbit/s", report.End.Received.Bps/1e9)
			wantEnd(t, server)
			wantSummary(t, server.Log(), 2)
			conns := 2 // one for control and one for data
			if len(args) > 0 && args[0] == "-P" {
				conns = 9
			}
			w.stop(t).wantSMC(t, conns, report.End.Received.Bytes)
			l.wantNoConnections(l.A, l.B)
		})
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	l := newLab(t, "redis-server", "redis-benchmark", "redis-cli")
	dir := t.TempDir()
	server := l.under(l.A, "redis-server", "--bind", l.A.Addr(), "--port", "6379", "--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", dir, "--daemonize", "no")
	if err := l.A.WaitListen(6379, startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	run := func(argv ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		argv = underArgv(argv...)
		out, err := l.B.Output(ctx, argv[0], argv[1:]...)
		if err != nil {
			t.Fatalf("%v\n%s\nserver:\n%s", err, out, server.Log())
		}
		return out
	}
	w := l.watch()
	if got := run("redis-cli", "-h", l.A.Addr(), "set", "answer", "42"); strings.TrimSpace(got) != "OK" {
		t.Errorf("set: %q", got)
	}
	if got := run("redis-cli", "-h", l.A.Addr(), "get", "answer"); strings.TrimSpace(got) != "42" {
		t.Errorf("get: %q", got)
	}
	w.stop(t).wantSMC(t, 2, 1)

	for _, pipeline := range []int{1, 16} {
		t.Run("pipeline "+strconv.Itoa(pipeline), func(t *testing.T) {
			const requests, size = 20000, 100
			w := l.watch()
			out := run("redis-benchmark", "-h", l.A.Addr(), "-c", "50", "-n", strconv.Itoa(requests), "-P", strconv.Itoa(pipeline), "-d", strconv.Itoa(size), "-t", "set,get", "--csv")
			for _, command := range []string{"SET", "GET"} {
				m := regexp.MustCompile(`"` + command + `","([0-9.]+)"`).FindStringSubmatch(out)
				if m == nil {
					t.Errorf("redis-benchmark reports no %s: %q", command, out)
					continue
				}
				t.Logf("%s: %s requests/s", command, m[1])
			}
			w.stop(t).wantSMC(t, 50, 2*requests*size)
		})
	}
	// redis-cli checks each byte of a large value in each direction.
	big := strings.Repeat("0123456789abcdef", 4<<10)
	w = l.watch()
	run("redis-cli", "-h", l.A.Addr(), "set", "big", big)
	if got := run("redis-cli", "-h", l.A.Addr(), "get", "big"); strings.TrimSpace(got) != big {
		t.Errorf("get of a large value: %d bytes, want %d", len(got), len(big))
	}
	w.stop(t).wantSMC(t, 2, int64(2*len(big)))
	terminate(t, server)
	wantSummary(t, server.Log(), 2+2*50+2)
	l.wantNoConnections(l.A, l.B)
}

func TestPythonHTTPServer(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	l := newLab(t, "/usr/bin/python3", "curl")
	dir := t.TempDir()
	digest := writeFile(t, filepath.Join(dir, "file"), size)
	server := l.under(l.A, "/usr/bin/python3", "-u", "-m", "http.server", "--bind", l.A.Addr(), "--directory", dir, "8000")
	if err := l.A.WaitListen(8000, startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	w := l.watch()
	url := "http://" + l.A.Addr() + ":8000/file"
	if got := l.curl(time.Minute, url); got != digest {
		t.Errorf("curl received the digest %s, want %s", got, digest)
	}
	// The client is a Python program. urllib has blocking sockets, so connect blocks.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := underArgv("/usr/bin/python3", "-c",
		"import hashlib,sys,urllib.request; print(hashlib.sha256(urllib.request.urlopen(sys.argv[1], timeout=30).read()).hexdigest())", url)
	out, err := l.B.Output(ctx, argv[0], argv[1:]...)
	if err != nil || strings.TrimSpace(out) != digest {
		t.Errorf("urllib: %v, digest %q, want %s", err, out, digest)
	}
	w.stop(t).wantSMC(t, 2, 2*size)
	if err := server.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := server.Wait(endTime); err != nil && !isExit(err) {
		t.Error(err)
	}
	l.wantNoConnections(l.A, l.B)
}

// isExit reports whether an error is the exit status of a program, or its end by a
// signal.
func isExit(err error) bool {
	_, ok := errors.AsType[*exec.ExitError](err)
	return ok
}

func TestStaticGo(t *testing.T) {
	t.Parallel()
	const size, conns, repeat = 32 << 20, 8, 2
	l := newLab(t)
	server := l.under(l.A, bin("webserver"), "-listen", l.A.Addr()+":8080")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	w := l.watch()
	client := l.under(l.B, bin("webclient"), "-c", strconv.Itoa(conns), "-n", strconv.Itoa(repeat), fmt.Sprintf("http://%s:8080/bytes/%d", l.A.Addr(), size))
	if err := client.Wait(2 * time.Minute); err != nil {
		t.Errorf("%v\n%s", err, client.Log())
	}
	t.Log(strings.TrimSpace(client.Log()))
	wantSummary(t, client.Log(), conns)
	w.stop(t).wantSMC(t, conns, conns*repeat*size)
	terminate(t, server)
	wantSummary(t, server.Log(), conns)
	l.wantNoConnections(l.A, l.B)
}

// TestOnDemandStack: the first smcr run on a host starts a stack, the next one uses it.
func TestOnDemandStack(t *testing.T) {
	l := newLab(t)
	if pids := l.stackPids(l.A); len(pids) > 0 {
		t.Fatalf("stack processes %v before the first smcr run", pids)
	}
	server := l.under(l.A, bin("probe"), "server", l.A.Addr()+":7")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	first := l.stackPids(l.A)
	if len(first) != 1 {
		t.Errorf("stack processes %v after the first smcr run, want one", first)
	}
	other := l.under(l.A, bin("probe"), "server", l.A.Addr()+":8")
	if err := other.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	if pids := l.stackPids(l.A); len(pids) != 1 || pids[0] != first[0] {
		t.Errorf("stack processes %v after the second smcr run, want %v", pids, first)
	}
	// Host B has a separate stack, or none yet.
	if pids := l.stackPids(l.B); len(pids) != 0 {
		t.Errorf("stack processes %v on the other host", pids)
	}
	terminate(t, server)
	terminate(t, other)
}

// TestIdleStack: a stack without programs ends after its idle timeout.
func TestIdleStack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// A busy machine needs seconds to start the program.
	const idle = 8 * time.Second
	stack := l.serve(l.A, "--idle-timeout", idle.String())
	server := l.probeServer()
	// It does not end while a program runs.
	if err := stack.Wait(idle + time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stack ended under a program: %v\n%s", err, stack.Log())
	}
	terminate(t, server)
	wantEnd(t, stack)
}

// TestEndings: half close and reset have the same effect as over TCP.
func TestEndings(t *testing.T) {
	l := newLab(t)
	server := l.probeServer()
	w := l.watch()
	const size = 3<<20 + 1
	for _, n := range []int64{0, 1, size} {
		c := l.under(l.B, bin("probe"), "halfclose", l.A.Addr()+":7", strconv.FormatInt(n, 10))
		if err := c.Wait(time.Minute); err != nil || !strings.Contains(c.Log(), "all came back") {
			t.Errorf("half close after %d bytes: %v\n%s", n, err, c.Log())
		}
	}
	if n := strings.Count(server.Log(), "ended: EOF"); n != 3 {
		t.Errorf("the server saw %d of 3 connections end in good order:\n%s", n, server.Log())
	}
	wantEnd(t, l.under(l.B, bin("probe"), "abort", l.A.Addr()+":7"))
	if err := server.WaitOutput("ended: reset", endTime); err != nil {
		t.Error(err)
	}
	w.stop(t).wantSMC(t, 4, 2*size)
	terminate(t, server)
	l.wantNoConnections(l.A, l.B)
}
