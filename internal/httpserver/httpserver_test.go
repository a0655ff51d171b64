// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

func TestParseAddr(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:9791": "127.0.0.1:9791", ":9791": "127.0.0.1:9791", "[::1]:80": "[::1]:80", "0.0.0.0:1": "0.0.0.0:1",
		"localhost:0": "localhost:0", "": "", "9791": "", "host": "", "host:http": "", "host:65536": "", "::1:80": "", "a:-1": "",
	} {
		got, err := ParseAddr(in)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, os.ErrInvalid) {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

// start serves handlers on a port of the loopback device. end ends it in order.
func start(t *testing.T, handlers map[string]http.Handler) (addr string, end func() error) {
	t.Helper()
	return startWith(t, handlers, times{headerTime, endTime})
}

// patient are limits that no test reaches.
var patient = times{header: time.Hour, end: time.Hour}

// startWith is start with other limits.
func startWith(t *testing.T, handlers map[string]http.Handler, limits times) (addr string, end func() error) {
	t.Helper()
	return startFor(t, handlers, limits, sourceOf)
}

// startFor is startWith with other sources.
func startFor(t *testing.T, handlers map[string]http.Handler, limits times, who func(net.Conn) source) (addr string, end func() error) {
	t.Helper()
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- serve(ctx, l, handlers, slog.New(slog.DiscardHandler), limits, who) }()
	ended := false
	end = func() error {
		cancel()
		ended = true
		select {
		case err := <-result:
			return err
		case <-time.After(testkind.Patience):
			return errors.New("the server does not end")
		}
	}
	t.Cleanup(func() {
		if !ended {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	return l.Addr().String(), end
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// reset in place of a status is a connection that the server has reset.
const reset = -1

// ask sends a request as it is and returns the status and the body of the answer.
func ask(t *testing.T, addr, request string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkind.Patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, syscall.ECONNRESET) {
		return reset, ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if errors.Is(err, syscall.ECONNRESET) {
		return reset, ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestRequests(t *testing.T) {
	testkind.System(t)
	addr, _ := start(t, map[string]http.Handler{
		"GET /metrics": http.HandlerFunc(hello),
		"POST /read":   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { readAll(w, r) }),
		"/panic":       http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
	})
	get := func(path, host, more string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + more + "\r\n"
	}
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"plain":                {get("/metrics", addr, ""), 200},
		"localhost":            {get("/metrics", "localhost:80", ""), 200},
		"address without port": {get("/metrics", "[::1]", ""), 200},
		"HTTP/1.0":             {"GET /metrics HTTP/1.0\r\n\r\n", 200},
		"name of another":      {get("/metrics", "attacker.example:9791", ""), 421},
		"like localhost":       {get("/metrics", "localhost.attacker.example", ""), 421},
		"not there":            {get("/", addr, ""), 404},
		"wrong method":         {"DELETE /metrics HTTP/1.1\r\nHost: " + addr + "\r\n\r\n", 405},
		"header too long":      {get("/metrics", addr, "X: "+strings.Repeat("x", 64<<10)+"\r\n"), 431},
		"body too long":        {"POST /read HTTP/1.1\r\nHost: " + addr + "\r\nContent-Length: 70000\r\n\r\n" + strings.Repeat("x", 70000), 413},
		"no HTTP":              {"\x16\x03\x01\x02\x00\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := ask(t, addr, tt.request)
			if status == reset && (tt.status == 431 || tt.status == 413) {
				return // the server does not read the rest, so TCP may discard its answer
			}
			if status != tt.status {
				t.Errorf("status %d, want %d: %s", status, tt.status, body)
			}
		})
	}
	if _, err := http.Get("http://" + addr + "/panic"); err == nil {
		t.Error("a handler that panics answers")
	}
	if status, body := ask(t, addr, get("/metrics", addr, "")); status != 200 || body != "hello" {
		t.Errorf("after a panic: %d, %q", status, body)
	}
}

func readAll(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
	}
}

// TestManyConnections: connections on which nothing is asked do not keep others out, however
// many there are, and whether or not something was asked on them before. Each is from this host.
func TestManyConnections(t *testing.T) {
	testkind.System(t)
	for _, asked := range []bool{false, true} {
		// No time of a connection ends while the test waits.
		addr, _ := startWith(t, map[string]http.Handler{"GET /": http.HandlerFunc(hello)}, patient)
		for range 2 * MaxConns {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if !asked {
				continue
			}
			_ = c.SetDeadline(time.Now().Add(testkind.Patience))
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
		late, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer late.Close()
		if _, err := io.WriteString(late, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_ = late.SetReadDeadline(time.Now().Add(4 * time.Second))
		if b, err := io.ReadAll(late); err != nil || !strings.HasSuffix(string(b), "hello") {
			t.Errorf("beside idle connections (asked before: %v): %q, %v", asked, b, err)
		}
	}
}

// TestManyRequests: one host cannot have all connections, also with requests that take long.
// Other hosts are served, and few requests of one host at a time.
func TestManyRequests(t *testing.T) {
	testkind.System(t)
	hold := make(chan struct{})
	var busy atomic.Int32
	addr, _ := startFor(t, map[string]http.Handler{
		"GET /":     http.HandlerFunc(hello),
		"GET /hold": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { busy.Add(1); <-hold }),
	}, times{headerTime, endTime}, byAddress)
	defer close(hold)
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for range 2 * MaxConns {
		_, _ = io.WriteString(dial("127.0.0.2"), "GET /hold HTTP/1.0\r\n\r\n")
	}
	testkind.Eventually(t, "requests are served", func() (any, bool) { return busy.Load(), busy.Load() == sourceAnswers })
	other := dial("127.0.0.3")
	if _, err := io.WriteString(other, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = other.SetReadDeadline(time.Now().Add(testkind.Patience))
	if b, err := io.ReadAll(other); err != nil || !strings.HasSuffix(string(b), "hello") {
		t.Errorf("another host: %q, %v", b, err)
	}
	if n := busy.Load(); n != sourceAnswers {
		t.Errorf("%d requests of one host at a time", n)
	}
}

// byAddress has each address be a source, also one of this host.
func byAddress(c net.Conn) source {
	return source{host: c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()}
}

// TestSlowClient: a client that does not finish its header is disconnected.
func TestSlowClient(t *testing.T) {
	testkind.System(t)
	addr, _ := startWith(t, map[string]http.Handler{"GET /": http.HandlerFunc(hello)}, times{header: 50 * time.Millisecond, end: time.Hour})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost:"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(testkind.Patience))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection is open after the time of a header: %v", err)
	}
}

// TestEnd: the server answers the request that it has begun to answer, and ends.
func TestEnd(t *testing.T) {
	testkind.System(t)
	begun, proceed := make(chan struct{}), make(chan struct{})
	addr, end := startWith(t, map[string]http.Handler{"GET /": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-proceed
		hello(w, r)
	})}, patient)
	answer := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + addr + "/")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		answer <- string(b)
	}()
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	testkind.Eventually(t, "the server begins to end", func() (any, bool) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return nil, err != nil
	})
	close(proceed)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if a := <-answer; a != "hello" {
		t.Errorf("the last answer is %q", a)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the port is open after the end")
	}
}

// TestEndKept: the server ends although a client keeps its connection, or has no answer yet.
func TestEndKept(t *testing.T) {
	testkind.System(t)
	begun, proceed := make(chan struct{}), make(chan struct{})
	addr, end := startWith(t, map[string]http.Handler{"GET /": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-proceed
	})}, times{header: time.Hour, end: 10 * time.Millisecond})
	defer close(proceed)
	for _, request := range []string{"", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
	}
	<-begun
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestListenErrors(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(t.Context(), l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) || strings.Count(err.Error(), "127.0.0.1") != 1 {
		t.Errorf("an address that is in use: %v", err)
	}
	if _, err := Listen(t.Context(), "192.0.2.1:80"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of no netdev: %v", err)
	}
}

// TestAcceptFails: the error of a listener that fails is returned.
func TestAcceptFails(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := Serve(t.Context(), l, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}
