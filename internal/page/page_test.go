// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
)

func netdev(i uint32) string { return map[uint32]string{2: "eth0", 3: "eth1", 4: "eth2"}[i] }

func user(uid uint32) string { return map[uint32]string{1000: "alice"}[uid] }

// ask sends a request to a handler and returns the answer.
func ask(h http.Handler, method, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "localhost:9100"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// stateOf returns the state that a handler sends.
func stateOf(t *testing.T, h http.Handler, query string) (s state) {
	t.Helper()
	w := ask(h, http.MethodGet, "/state.json"+query)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", query, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// of returns the page of a stack in a state.
func of(s nltest.State) http.Handler {
	return New(Config{Dial: Stack("user", nltest.NewFake(s)), NetDev: netdev, User: user, Version: "1.2.3"})
}

// TestAnswers checks the status, the type and the headers of each address.
func TestAnswers(t *testing.T) {
	h := of(nltest.SampleState())
	for _, tt := range []struct {
		method, path string
		status       int
		kind, begin  string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8", "<!DOCTYPE html>"},
		{"HEAD", "/", 200, "text/html; charset=utf-8", ""},
		{"GET", "/page.css", 200, "text/css; charset=utf-8", "/* SPDX"},
		{"GET", "/page.js", 200, "text/javascript; charset=utf-8", "// SPDX"},
		{"GET", "/icon.svg", 200, "image/svg+xml", "<svg"},
		{"GET", "/topology.svg", 200, "image/svg+xml", "<svg"},
		{"GET", "/topology.svg?layout=narrow", 200, "image/svg+xml", "<svg"},
		{"GET", "/state.json", 200, "application/json", "{"},
		{"GET", "/state.json?filter=" + strings.Repeat("x", maxFilter), 200, "application/json", "{"},
		{"GET", "/state.json?filter=" + strings.Repeat("x", maxFilter+1), 400, "application/json", `{"error"`},
		{"GET", "/state.json?filter=%zz", 200, "application/json", "{"},
		{"GET", "/index.html", 404, "text/plain; charset=utf-8", "404"},
		{"GET", "/site/page.js", 404, "text/plain; charset=utf-8", "404"},
		{"GET", "/../handler.go", 404, "text/plain; charset=utf-8", "404"},
		{"POST", "/", 405, "text/plain; charset=utf-8", "this page can only be read"},
		{"PUT", "/state.json", 405, "text/plain; charset=utf-8", "this page can only be read"},
		{"OPTIONS", "/", 405, "text/plain; charset=utf-8", "this page can only be read"},
	} {
		w := ask(h, tt.method, tt.path)
		if w.Code != tt.status || w.Header().Get("Content-Type") != tt.kind || !strings.HasPrefix(w.Body.String(), tt.begin) {
			t.Errorf("%s %s: %d, %s, %.40s", tt.method, tt.path, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", "Access-Control-Allow-Origin": "",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s %s: %s is %q", tt.method, tt.path, name, got)
			}
		}
	}
}

// TestHost checks which names a request may use.
func TestHost(t *testing.T) {
	for _, tt := range []struct {
		host, address, local string
		ok                   bool
	}{
		{"localhost", "", "", true},
		{"localhost:9100", "", "", true},
		{"LOCALHOST.:9100", "", "", true},
		{"127.0.0.1:9100", "", "", true},
		{"127.1.2.3", "", "", true},
		{"[::1]:9100", "", "", true},
		{"[::ffff:127.0.0.1]:9100", "", "", true},
		{"", "", "", false},
		{"evil.example", "", "", false},
		{"localhost.evil.example:9100", "", "", false},
		{"127.0.0.1.evil.example", "", "", false},
		{"10.1.0.1:9100", "", "", false},
		{"10.1.0.1:9100", "10.1.0.1:9100", "", true},
		{"10.1.0.1", "10.1.0.1:9100", "", true},
		{"10.1.0.2", "10.1.0.1:9100", "", false},
		{"monitor.example:80", "monitor.example:9100", "", true},
		{"evil.example:80", "monitor.example:9100", "", false},
		{"evil.example", "0.0.0.0:9100", "10.1.0.1:9100", false},
		{"10.1.0.1:9100", "0.0.0.0:9100", "10.1.0.1:9100", true},
		{"10.1.0.2:9100", "0.0.0.0:9100", "10.1.0.1:9100", false},
		{"10.1.0.1:9100", ":9100", "[::ffff:10.1.0.1]:9100", true},
		{"[fd00::1]:9100", ":9100", "[fd00::1]:9100", true},
		{"[fe80::1]:9100", ":9100", "[fe80::1%eth0]:9100", true},
		{"", ":9100", "10.1.0.1:9100", false},
	} {
		h := New(Config{Dial: Stack("user", nltest.NewFake(nltest.SampleState())), Address: tt.address})
		w := ask(h, http.MethodGet, "/state.json", func(r *http.Request) {
			r.Host = tt.host
			if tt.local != "" {
				local, err := net.ResolveTCPAddr("tcp", tt.local)
				if err != nil {
					t.Fatal(err)
				}
				*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
			}
		})
		if ok := w.Code == http.StatusOK; ok != tt.ok || !ok && (w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "host-a")) {
			t.Errorf("%+v: %d", tt, w.Code)
		}
	}
}

// TestState checks what the page is told, and what it is not told.
func TestState(t *testing.T) {
	testkind.System(t)
	w := ask(of(nltest.SampleState()), http.MethodGet, "/state.json")
	var s state
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if want := (figures{Host: "host-a", Stack: "user", PID: 4711, Counted: 21037353, SMCR: 1, TCP: 1, Became: 7, Groups: 2, Peers: 2, Errors: 1}); !reflect.DeepEqual(s.Stacks, []figures{want}) {
		t.Errorf("%+v", s.Stacks)
	}
	if _, err := time.Parse(time.RFC3339, s.Time); err != nil || s.Version != "1.2.3" || s.Every != 2000 {
		t.Errorf("%v, version %s, every %d ms", err, s.Version, s.Every)
	}
	for name, tt := range map[string]struct {
		got  table
		want table
	}{
		"links": {s.Links, table{[][]string{
			{"user", "host-b (10.77.0.2)", "00000100", "SERV", "1", "eth0", "10.77.0.2", "ACTIVE", "2", "1200", "", ""},
			{"user", "host-b (10.77.0.2)", "00000100", "SERV", "2", "eth1", "10.77.0.4", "ACTIVATING", "1", "–", "", ""},
			{"user", "10.77.0.9", "00000200", "CLNT", "1", "eth0", "10.77.0.9", "ACTIVE", "1", "0", "", ""},
		}, 3, 3}},
		"connections": {s.Connections, table{[][]string{
			{"user", "10.77.0.1:5201", "10.77.0.2:40000", "SMCR", "ACTIVE", "00000100", "alice (1000)", "12 B", "19.9 MiB", "", ""},
			{"user", "[fd00:77::1]:40002", "[fd00:77::2]:443", "TCP", "ACTIVE", "", "alice (1000)", "", "", "", "peer declined"},
		}, 2, 2}},
		"fallbacks": {s.Fallbacks, table{[][]string{
			{"user", "client", "no SMC-D device", "0x03030001", "4"},
			{"user", "server", "peer declined", "0x05000000", "2"},
			{"user", "client", "timeout of CONFIRM LINK", "0x02010000", "1"},
		}, 3, 3}},
	} {
		for i := range tt.want.Rows {
			if name == "fallbacks" { // the words are those of package smc
				tt.want.Rows[i][2] = tt.got.Rows[i][2]
			}
		}
		if !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("%s: %+v", name, tt.got)
		}
	}
	if err := xml.Unmarshal([]byte(s.Picture), new(struct{ XMLName xml.Name })); err != nil || !strings.Contains(s.Picture, "Link group 00000100") {
		t.Errorf("picture: %v", err)
	}
	// Processes, the alert token and the peer ID of the sample state.
	for _, secret := range []string{"iperf3", "4800", "287454020", "11223344", "1234020000000002", "SMCV2-EXAMPLE"} {
		if strings.Contains(w.Body.String(), secret) {
			t.Errorf("the state has %s", secret)
		}
	}
}

// TestBounds checks that tables are bounded, and that the filter finds what they leave out.
func TestBounds(t *testing.T) {
	testkind.System(t)
	h := of(nltest.Rows(2000))
	w := ask(h, http.MethodGet, "/state.json")
	s := stateOf(t, h, "")
	if c := s.Connections; len(c.Rows) != maxConns || c.Total != 2000 || c.Matching != 2000 {
		t.Errorf("%d rows, %d, %d", len(c.Rows), c.Matching, c.Total)
	}
	if l := s.Links; len(l.Rows) != maxLinks || l.Total != 2000 || w.Body.Len() > 300<<10 {
		t.Errorf("%d rows, %d; %d bytes", len(l.Rows), l.Total, w.Body.Len())
	}
	for filter, want := range map[string]int{"10.0.0.11%3A": 200, "%20Smcr%20": 2000, "nothing": 0, "10.0.0.11%3A32769": 1, "%3Cscript%3E": 0} {
		c := stateOf(t, h, "?filter="+filter).Connections
		if c.Matching != want || c.Total != 2000 || len(c.Rows) != min(want, maxConns) {
			t.Errorf("%s: %d rows, %d, %d", filter, len(c.Rows), c.Matching, c.Total)
		}
	}
	many := nltest.SampleState()
	for i := range 1000 {
		many.Fallbacks.Reasons = append(many.Fallbacks.Reasons, nl.Fallback{Reason: uint32(i), Count: uint64(i)})
	}
	if f := stateOf(t, of(many), "").Fallbacks; len(f.Rows) != maxReasons || f.Total != 1003 || f.Rows[0][4] != "999" {
		t.Errorf("%d rows of %d", len(f.Rows), f.Total)
	}
}

// hostile is a text that a peer or a user may choose for its name.
const hostile = "\x1b[2J\u202e\n</script><img src=x onerror=alert(1)>\"'&\xff"

// poisoned is the sample state with hostile names of peers, programs, devices and pnetids.
func poisoned(text string) nltest.State {
	s := nltest.SampleState()
	nltest.Poison(&s, text)
	return s
}

// TestHostile checks that the state has no control characters, that its texts are not longer
// than a limit, and that the answer could not be taken for HTML.
func TestHostile(t *testing.T) {
	testkind.System(t)
	w := ask(of(poisoned(strings.Repeat(hostile, 20))), http.MethodGet, "/state.json")
	if i := strings.IndexFunc(w.Body.String(), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); i >= 0 || strings.Contains(w.Body.String(), "<") {
		t.Errorf("the answer has a special character: %.200q", w.Body.String())
	}
	var s state
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.Stacks[0].Host, "onerror") {
		t.Errorf("host %q", s.Stacks[0].Host)
	}
	for _, tab := range []table{s.Links, s.Connections, s.Fallbacks} {
		for _, cell := range slices.Concat(tab.Rows...) {
			if len(cell) > maxText+len("…") || strings.ContainsFunc(cell, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("cell %q", cell)
			}
		}
	}
	fake := nltest.NewFake(nltest.SampleState())
	fake.SetError(errors.New("gone" + hostile))
	w = ask(New(Config{Dial: Stack("user", fake)}), http.MethodGet, "/state.json")
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "<") || !strings.Contains(w.Body.String(), "gone") {
		t.Errorf("%d, %q", w.Code, w.Body)
	}
}

// TestOwnFiles checks that the files of the page load nothing from elsewhere and have no code
// in HTML, which the policy would forbid.
func TestOwnFiles(t *testing.T) {
	elsewhere := regexp.MustCompile(`(?i)(https?:)?//[a-z]|url\(|@import|\bstyle=|<style|\son\w+=|javascript:|innerHTML|outerHTML|insertAdjacent|\beval\b|document\.write`)
	n := 0
	err := fs.WalkDir(site, "site", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		b, err := site.ReadFile(name)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(b), `xmlns="http://www.w3.org/2000/svg"`, "")
		if m := elsewhere.FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
		if len(b) > 20<<10 {
			t.Errorf("%s has %d bytes", name, len(b))
		}
		return nil
	})
	if err != nil || n != 4 {
		t.Errorf("%d files, %v", n, err)
	}
}

// counting is a way to stacks that counts how often it is taken.
type counting struct {
	n   atomic.Int32
	ctl nl.Control
	err error
}

func (c *counting) dial(ctx context.Context) (nl.Multi, error) {
	c.n.Add(1)
	if c.err != nil {
		return nil, c.err
	}
	return Stack("user", c.ctl)(ctx)
}

// TestShared checks that all viewers share a listing for a second.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{ctl: nltest.NewFake(nltest.SampleState())}
		h := New(Config{Dial: c.dial, NetDev: netdev})
		for round := range 3 {
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					if w := ask(h, http.MethodGet, "/state.json?filter="+fmt.Sprint(i)); w.Code != http.StatusOK {
						t.Errorf("%d: %s", w.Code, w.Body)
					}
				})
			}
			wg.Wait()
			if got := int(c.n.Load()); got != round+1 {
				t.Fatalf("round %d: %d listings", round, got)
			}
			time.Sleep(minAge + time.Millisecond)
		}
	})
}

// TestUntil checks that slow listings are used longer.
func TestUntil(t *testing.T) {
	begin := time.Now()
	for took, want := range map[time.Duration]time.Duration{
		0: time.Second, 50 * time.Millisecond: time.Second, 500 * time.Millisecond: 5 * time.Second, 10 * time.Second: maxAge,
	} {
		end := begin.Add(took)
		if got := until(begin, end).Sub(end); got != want {
			t.Errorf("%v: %v, want %v", took, got, want)
		}
	}
}

// TestRates checks that the second listing has rates, and the one after a restart or after a
// long time has none.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := nltest.NewFake(nltest.SampleState())
		c := &counting{ctl: fake}
		h := New(Config{Dial: c.dial, NetDev: netdev})
		sent := func(wait time.Duration) string {
			time.Sleep(wait)
			fake.SetStats(func(s *nl.Stats, _ *nl.Fallbacks) { s.SMCR.TXBytes += 4 << 20 })
			return stateOf(t, h, "").Stacks[0].Sent
		}
		for _, tt := range []struct {
			wait time.Duration
			want string
		}{{0, ""}, {2 * time.Second, "2.00 MiB/s"}, {4 * time.Second, "1.00 MiB/s"}, {time.Minute, ""}, {2 * time.Second, "2.00 MiB/s"}} {
			if got := sent(tt.wait); got != tt.want {
				t.Errorf("after %v: %q, want %q", tt.wait, got, tt.want)
			}
		}
		c.err = nl.ErrNoBackend
		time.Sleep(2 * time.Second)
		if w := ask(h, http.MethodGet, "/state.json"); w.Code != http.StatusServiceUnavailable || !strings.HasPrefix(w.Body.String(), `{"error":"`) {
			t.Errorf("%d, %s", w.Code, w.Body)
		}
		other := nltest.SampleState()
		other.SysInfo.PID++
		c.err, c.ctl = nil, nltest.NewFake(other)
		time.Sleep(2 * time.Second)
		if s := stateOf(t, h, ""); s.Stacks[0].Sent != "" || s.Stacks[0].PID != 4712 {
			t.Errorf("%+v", s.Stacks)
		}
	})
}

// slow is a stack that takes a second to answer.
type slow struct{ *nltest.Fake }

func (s slow) Links(ctx context.Context) ([]nl.Link, error) {
	// Real time: none, for the test is in a bubble. Other functions have this name, too.
	time.Sleep(time.Second)
	return s.Fake.Links(ctx)
}

// TestSlow checks that viewers ask less often if a listing takes long.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{Dial: Stack("user", slow{nltest.NewFake(nltest.SampleState())}), NetDev: netdev})
		if s := stateOf(t, h, ""); s.Every != 10_000 {
			t.Errorf("every %d ms", s.Every)
		}
	})
}

// stuck is a stack that does not answer.
type stuck struct{ *nltest.Fake }

func (stuck) Links(ctx context.Context) ([]nl.Link, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestStuck checks what viewers get while a stack does not answer: a bounded number of them
// waits, and none for ever.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{Dial: Stack("user", stuck{nltest.NewFake(nltest.SampleState())}), NetDev: netdev})
		var busy, slow atomic.Int32
		var wg sync.WaitGroup
		begin := time.Now()
		for range maxRequests + 10 {
			wg.Go(func() {
				w := ask(h, http.MethodGet, "/state.json")
				switch {
				case w.Code != http.StatusServiceUnavailable:
					t.Errorf("%d: %s", w.Code, w.Body)
				case w.Header().Get("Retry-After") != "" && time.Since(begin) == maxWait:
					busy.Add(1)
				case strings.Contains(w.Body.String(), errSlow.Error()) && time.Since(begin) == listTime:
					slow.Add(1)
				default:
					t.Errorf("after %v: %s", time.Since(begin), w.Body)
				}
			})
		}
		// One who does not wait, and one who gives up.
		time.Sleep(time.Second)
		if w := ask(h, http.MethodGet, "/"); w.Code != http.StatusOK {
			t.Errorf("the page itself: %d", w.Code)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		ask(h, http.MethodGet, "/state.json", func(r *http.Request) { *r = *r.WithContext(ctx) })
		if time.Since(begin) != 3*time.Second/2 {
			t.Errorf("gave up after %v", time.Since(begin))
		}
		wg.Wait()
		if busy.Load() != 10 || slow.Load() != maxRequests {
			t.Errorf("%d and %d", busy.Load(), slow.Load())
		}
	})
}

// TestMounted asks the page through a ServeMux and a TCP connection.
func TestMounted(t *testing.T) {
	testkind.System(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") })
	mux.Handle("/", of(nltest.SampleState()))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	for path, want := range map[string]string{"/": "<h1", "/metrics": "metrics", "/topology.svg": "host-b"} {
		resp, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, %d", path, err, resp.StatusCode)
		}
	}
}
