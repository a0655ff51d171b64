// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

// programLimit is the time limit of each program: the guest is emulated, and the machine
// may be busy.
const programLimit = 3 * time.Minute

// TestPrograms runs unmodified programs on both sides, with the server on either side.
// The programs run under smcr run, with the kernel's SMC on one side and the user-space
// stack on the other.
func TestPrograms(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 1)
	site := newSite(t, kernel)
	for _, tt := range []struct {
		name           string
		client, server *side
	}{
		{"KernelToUser", kernel, user},
		{"UserToKernel", user, kernel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Run("Iperf3", func(t *testing.T) { testIperf3(t, tt.client, tt.server) })
			t.Run("Nginx", func(t *testing.T) { site.test(t, tt.client, tt.server) })
			t.Run("Redis", func(t *testing.T) { testRedis(t, tt.client, tt.server) })
			for _, s := range []*side{kernel, user} {
				eventually(t, s.backend+": no connection is left", func() bool { return len(active(t, s)) == 0 })
			}
		})
	}
	wantQuiet(t, user)
}

// program returns the command line that runs a program with the SMC of the side.
func (s *side) program(argv ...string) []string {
	return append([]string{s.smcr, "run", "--mode", s.backend, "-v", "--no-adapt", "--"}, argv...)
}

// exec runs a program that must end with status 0.
func (s *side) exec(t *testing.T, argv ...string) guest.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	r, err := s.try(ctx, s.program(argv...)...)
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", s.backend, err, r.Stdout, r.Stderr)
	}
	return r
}

// daemon starts a server program and waits until it listens on the port. stop ends it and
// returns its output.
func (s *side) daemon(t *testing.T, port int, argv ...string) (stop func() guest.Result) {
	t.Helper()
	c := s.Command(append(append([]string{}, s.prefix...), s.program(argv...)...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var r *guest.Result
	stop = func() guest.Result {
		if r == nil {
			x := s.stop(t, c)
			r = &x
		}
		return *r
	}
	t.Cleanup(func() {
		if r := stop(); t.Failed() {
			t.Logf("%s: %q wrote:\n%s%s", s.backend, argv, r.Stdout, r.Stderr)
		}
	})
	eventually(t, fmt.Sprintf("%s: %s listens", s.backend, argv[0]), func() bool {
		return strings.Contains(s.run(t, "ss", "-Hltn", fmt.Sprintf("sport = :%d", port)), "LISTEN")
	})
	return stop
}

// A counting has the counters of both sides at a time.
type counting struct {
	client, server           *side
	clientBefore, serverThen counters
}

// count returns the present counters.
func count(t *testing.T, client, server *side) counting {
	t.Helper()
	return counting{client, server, stats(t, client), stats(t, server)}
}

// want checks that the counters of both sides have at least n new connections of version
// 2, and no fallback, or one for each ten: an emulated kernel on a busy machine may show no sign
// of life for half a second, and connections that begin then are TCP.
func (c counting) want(t *testing.T, n int) {
	t.Helper()
	few := n / 10
	now := stats(t, c.client)
	if got := now.SMCR.ClientV2 - c.clientBefore.SMCR.ClientV2; got < n-few || now.Fallbacks.Client-c.clientBefore.Fallbacks.Client > few || now.Fallbacks.Server != c.clientBefore.Fallbacks.Server {
		t.Errorf("%s: %d connections as client, want %d or more; fallbacks %+v, before %+v", c.client.backend, got, n, now.Fallbacks, c.clientBefore.Fallbacks)
	}
	now = stats(t, c.server)
	if got := now.SMCR.ServerV2 - c.serverThen.SMCR.ServerV2; got < n-few || now.Fallbacks.Server-c.serverThen.Fallbacks.Server > few || now.Fallbacks.Client != c.serverThen.Fallbacks.Client {
		t.Errorf("%s: %d connections as server, want %d or more; fallbacks %+v, before %+v", c.server.backend, got, n, now.Fallbacks, c.serverThen.Fallbacks)
	}
}

// listed checks both sides while n connections or more are open: all have mode SMCR,
// as in smcss, and their link groups know the peer. It returns false if over is closed
// before both sides have listed the connections.
func listed(t *testing.T, client, server *side, n int, over <-chan struct{}) bool {
	t.Helper()
	for _, s := range []*side{client, server} {
		var list []connection
		for len(list) < n {
			select {
			case <-over:
				return false
			default:
				list = active(t, s)
			}
		}
		for _, c := range list {
			if c.Mode != "SMCR" {
				t.Errorf("%s: connection %+v is not SMC-R", s.backend, c)
			}
		}
		groups := query[linkGroup](t, s, "linkgroup", "list")
		if len(groups) == 0 {
			t.Errorf("%s: no link group", s.backend)
		}
		for _, g := range groups {
			if g.Version != 2 || g.V2 == nil || *g.V2 != (groupV2{1, "LINUX", "linux", eid}) {
				t.Errorf("%s: link group %+v, %+v", s.backend, g, g.V2)
			}
		}
	}
	return true
}

// testIperf3 tests one stream, four streams, and one in the other direction.
func testIperf3(t *testing.T, client, server *side) {
	for _, tt := range []struct {
		name  string
		args  []string
		conns int
	}{
		{"One", nil, 2}, {"Four", []string{"-P", "4"}, 5}, {"Reverse", []string{"-R"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// On a busy machine, the listings may take longer than a short run.
			for _, seconds := range []int{3, 10, 30, 90} {
				if runIperf3(t, client, server, seconds, tt.conns, tt.args...) || t.Failed() {
					return
				}
			}
			t.Error("no run of iperf3 was long enough to list its connections")
		})
	}
}

// runIperf3 runs iperf3 for a number of seconds, with a number of connections in all. It
// returns what listed returns.
func runIperf3(t *testing.T, client, server *side, seconds, conns int, args ...string) bool {
	t.Helper()
	stop := server.daemon(t, 5201, "iperf3", "-s", "-1", "-B", server.addr)
	c := count(t, client, server)
	over := make(chan struct{})
	var r *guest.Result
	go func() {
		defer close(over)
		x := client.exec(t, append([]string{"iperf3", "-c", server.addr, "-t", strconv.Itoa(seconds), "--json"}, args...)...)
		r = &x
	}()
	ok := listed(t, client, server, conns, over)
	if <-over; r == nil {
		return false // exec has said why
	}
	var report struct {
		Error string
		End   struct {
			Received struct {
				Bytes int64   `json:"bytes"`
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil || report.Error != "" {
		t.Fatalf("iperf3: %v %s\n%s", err, report.Error, r.Stdout)
	}
	if got := report.End.Received; got.Bytes < 1<<20 {
		t.Errorf("iperf3 received %d bytes", got.Bytes)
	}
	t.Logf("%.0f Mbit/s", report.End.Received.Rate/1e6)
	stop()
	c.want(t, conns)
	return ok
}

// A site is the web site of nginx.
type site struct {
	dir, digest string
}

// siteSize is the size of the site's file.
const siteSize = 64 << 20

// newSite makes the file in the memory of the guest.
func newSite(t *testing.T, s *side) *site {
	t.Helper()
	w := &site{dir: "/tmp/site"}
	begin := time.Now()
	s.run(t, "mkdir", "-m", "755", w.dir)
	// The data is random, so that a piece at a wrong place is noticed.
	out := s.run(t, "sh", "-c", fmt.Sprintf("head -c %d /dev/urandom >%[2]s/big && sha256sum <%[2]s/big", siteSize, w.dir))
	w.digest = strings.Fields(out)[0]
	t.Logf("file of %d bytes made in %v", siteSize, time.Since(begin).Round(time.Millisecond))
	return w
}

// test downloads the file from nginx with curl.
func (w *site) test(t *testing.T, client, server *side) {
	conf := fmt.Sprintf(`
daemon off;
master_process on;
worker_processes 2;
pid %[1]s/%[2]s.pid;
error_log stderr;
events { worker_connections 64; }
http {
	access_log off;
	sendfile on;
	client_body_temp_path /tmp/%[2]s-body;
	proxy_temp_path /tmp/%[2]s-proxy;
	fastcgi_temp_path /tmp/%[2]s-fastcgi;
	uwsgi_temp_path /tmp/%[2]s-uwsgi;
	scgi_temp_path /tmp/%[2]s-scgi;
	server { listen %[3]s:80; root %[1]s; }
}
`, w.dir, server.backend, server.addr)
	file := w.dir + "/" + server.backend + ".conf"
	put := server.Command("sh", "-c", "cat >"+file)
	put.Stdin = []byte(conf)
	if _, err := put.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.daemon(t, 80, "nginx", "-e", "stderr", "-c", file)
	c := count(t, client, server)
	begin := time.Now()
	// The command prints the digest of what curl received, if curl succeeded.
	out := client.exec(t, "sh", "-c", fmt.Sprintf(`curl --silent --show-error --fail --noproxy '*' -o /tmp/got http://%s/big && sha256sum </tmp/got && rm /tmp/got`, server.addr)).Stdout
	if got := strings.Fields(out)[0]; got != w.digest {
		t.Errorf("curl received the digest %s, want %s", got, w.digest)
	}
	t.Logf("%d bytes in %v", siteSize, time.Since(begin).Round(time.Millisecond))
	c.want(t, 1)
}

// testRedis runs redis-benchmark and checks values with redis-cli.
func testRedis(t *testing.T, client, server *side) {
	const clients, requests = 20, 2000 // more at once keep an emulated processor busy for too long
	server.daemon(t, 6379, "redis-server", "--bind", server.addr, "--port", "6379", "--save", "", "--appendonly", "no",
		"--protected-mode", "no", "--dir", "/tmp", "--daemonize", "no")
	c := count(t, client, server)
	for _, pipeline := range []int{1, 16} {
		// There are enough requests for all clients to connect before the last one.
		out := client.exec(t, "redis-benchmark", "-h", server.addr, "-c", strconv.Itoa(clients), "-n", strconv.Itoa(requests*pipeline),
			"-P", strconv.Itoa(pipeline), "-d", "100", "-t", "set,get", "--csv").Stdout
		for _, command := range []string{"SET", "GET"} {
			m := regexp.MustCompile(`"` + command + `","([0-9.]+)"`).FindStringSubmatch(out)
			if m == nil {
				t.Errorf("redis-benchmark reports no %s: %q", command, out)
				continue
			}
			t.Logf("%s, pipelines of %d: %s requests/s", command, pipeline, m[1])
		}
	}
	c.want(t, 2*2*clients)
	big := strings.Repeat("0123456789abcdef", 4<<10)
	if got := client.exec(t, "redis-cli", "-h", server.addr, "set", "big", big).Stdout; strings.TrimSpace(got) != "OK" {
		t.Errorf("set: %q", got)
	}
	if got := client.exec(t, "redis-cli", "-h", server.addr, "get", "big").Stdout; strings.TrimSpace(got) != big {
		t.Errorf("get: %d bytes, want %d, or other ones", len(got), len(big))
	}
	c.want(t, 2*2*clients+2)
}

// wantQuiet checks that the log of the stack has no warning.
func wantQuiet(t *testing.T, user *side) {
	t.Helper()
	for line := range strings.Lines(user.stop(t, user.stack).Stderr) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Errorf("the stack warns: %s", line)
		}
	}
}
