// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	explained "smcr/internal/reasons"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// testExporter compares what smcr exporter answers about the kernel with the listings, while
// connections are open and after fallbacks for several reasons.
func testExporter(t *testing.T, a, b *host) {
	netnstest.RequireTools(t, "curl", "promtool", "setpriv") // guests have the programs of this host
	const conns = 3
	// The next connection gets a DECLINE, because b has no enterprise ID.
	b.run(t, b.smcr, "ueid", "del", "SMCV2-EXAMPLE-UEID", "--backend", "kernel")
	b.start(t, "listening", b.peer, "serve", b.addr+":5005")
	declined := a.start(t, "echoed", a.peer, "connect", b.addr+":5005")
	defer declined()
	b.run(t, b.smcr, "ueid", "add", "SMCV2-EXAMPLE-UEID", "--backend", "kernel")
	b.start(t, "listening", b.peer, "serve", b.addr+":5006")
	end := a.start(t, "echoed", a.peer, "connect", "-n", strconv.Itoa(conns), b.addr+":5006")
	defer end()

	declinedAs := map[*host]string{a: `reason="peer_declined",side="client"`, b: `reason="no_smc_device",side="server"`}
	for _, h := range []*host{a, b} {
		expected := map[string]float64{
			`smcr_connections{stack="kernel"}`:                           conns,
			`smcr_links{stack="kernel",state="active"}`:                  1,
			`smcr_device_link_groups{device="rxe0",stack="kernel"}`:      1,
			"smcr_fallbacks_total{" + declinedAs[h] + `,stack="kernel"}`: 1,
		}
		// The exporter needs no rights.
		h.start(t, "msg=exporting", "sh", "-c", `exec setpriv --reuid=65534 --clear-groups "$0" exporter 2>&1`, h.smcr)
		text := h.run(t, "curl", "-sf", "--max-time", "20", "http://127.0.0.1:9791/metrics")
		want := h.metricsListed(t)
		if got := series(t, text, want); !cmp.Equal(want, got) {
			t.Errorf("%s: metrics (-listings +exporter):\n%s", h.Name(), cmp.Diff(want, got))
		}
		for series, n := range expected {
			if got := want[series]; got != n {
				t.Errorf("%s: %s is %v in the listings, want %v", h.Name(), series, got, n)
			}
		}
		wantPromtool(t, text)
		for path, part := range map[string]string{"/": "<!DOCTYPE html>", "/state.json": `"ACTIVE"`, "/topology.svg": "<svg"} {
			if out := h.run(t, "curl", "-sf", "--max-time", "20", "http://127.0.0.1:9791"+path); !strings.Contains(out, part) {
				t.Errorf("%s: %s has no %s:\n%s", h.Name(), path, part, out)
			}
		}
	}
}

// metricsListed returns the metrics that the listings of smcr amount to, by the text of the
// series.
func (h *host) metricsListed(t *testing.T) map[string]float64 {
	t.Helper()
	want := map[string]float64{
		"smcr_stacks": 1, `smcr_up{stack="kernel"}`: 1, `smcr_stack_info{implementation="kernel",smc_version="2.1",stack="kernel",version=""}`: 1,
	}
	add := func(n float64, name string, labels ...string) {
		s := "smcr_" + name + "{"
		for i := 0; i < len(labels); i += 2 {
			s += fmt.Sprintf("%s=%q,", labels[i], labels[i+1])
		}
		want[strings.TrimSuffix(s, ",")+"}"] += n
	}
	const stack, kernel = "stack", "kernel"
	for _, kind := range []string{"none", "single", "symmetric", "asymmetric_local", "asymmetric_peer", "other"} {
		add(0, "link_groups", stack, kernel, "type", kind)
	}
	for _, state := range []string{"unused", "inactive", "activating", "active", "other"} {
		add(0, "links", stack, kernel, "state", state)
	}
	for _, g := range query[linkGroup](t, h, "linkgroup", "list") {
		add(1, "link_groups", stack, kernel, "type", strings.ToLower(g.Type))
		add(float64(g.Conns), "connections", stack, kernel)
		add(float64(g.RMB), "link_group_memory_bytes", "direction", "receive", stack, kernel)
		add(float64(g.Sndbuf), "link_group_memory_bytes", "direction", "send", stack, kernel)
	}
	d := queryOne[device](t, h, "device", "list")
	add(0, "device_link_groups", "device", d.IBDev, stack, kernel)
	for _, l := range query[link](t, h, "link", "list") {
		add(1, "links", stack, kernel, "state", strings.ToLower(l.State))
		add(1, "device_link_groups", "device", l.IBDev, stack, kernel) // no link group has two links here
	}
	add(1, "device_port_active", "device", d.IBDev, "port", "1", stack, kernel)

	c := queryOne[counters](t, h, "stats", "show", "--absolute")
	x := c.SMCR
	for key, n := range map[[2]string]uint64{{"client", "1"}: x.ClientV1, {"client", "2"}: x.ClientV2, {"server", "1"}: x.ServerV1, {"server", "2"}: x.ServerV2} {
		add(float64(n), "connections_opened_total", "side", key[0], stack, kernel, "version", key[1])
	}
	add(float64(c.Errors.Client), "handshake_errors_total", "side", "client", stack, kernel)
	add(float64(c.Errors.Server), "handshake_errors_total", "side", "server", stack, kernel)
	for name, d := range map[string]*direction{"receive": &x.RX, "send": &x.TX} {
		add(float64(d.Bytes), "bytes_total", "direction", name, stack, kernel)
		add(float64(d.Calls), "requests_total", "direction", name, stack, kernel)
		add(float64(d.Buffer), "buffer_usage_bytes", "direction", name, stack, kernel)
		add(float64(d.Buffers.Alloc), "buffer_allocations_total", "direction", name, stack, kernel)
		add(float64(d.Buffers.Reuse), "buffer_reuses_total", "direction", name, stack, kernel)
		add(float64(d.Buffers.Full), "buffer_full_total", "direction", name, stack, kernel)
		add(float64(d.Bytes), "request_size_bytes_sum", "direction", name, stack, kernel)
		var sized uint64
		for _, b := range d.CallSizes {
			sized += b.Count
		}
		add(float64(sized), "request_size_bytes_count", "direction", name, stack, kernel)
	}
	for _, side := range []string{"client", "server"} {
		for _, reason := range []string{"other", "peer_declined", "peer_without_smc"} {
			add(0, "fallbacks_total", "reason", reason, "side", side, stack, kernel)
		}
	}
	for _, r := range c.Fallbacks.Reasons {
		code, err := strconv.ParseUint(r.Reason, 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		label := explained.Label(smc.Diagnosis(code))
		if label == "" {
			t.Errorf("%s: the kernel has a reason without a name: %s", h.Name(), r.Reason)
			label = "other"
		}
		add(float64(r.Count), "fallbacks_total", "reason", label, "side", r.Side, stack, kernel)
	}
	return want
}

// series returns the series in the text of a scrape whose metrics are among those of want.
func series(t *testing.T, text string, want map[string]float64) map[string]float64 {
	t.Helper()
	metric := func(series string) string { name, _, _ := strings.Cut(series, "{"); return name }
	names := map[string]bool{}
	for s := range want {
		names[metric(s)] = true
	}
	got := map[string]float64{}
	for line := range strings.Lines(text) {
		i := strings.LastIndexByte(line, ' ')
		if line[0] == '#' || i < 0 || !names[metric(line[:i])] {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		got[line[:i]] = n
	}
	return got
}

// wantPromtool checks the text of a scrape with promtool on this host.
func wantPromtool(t *testing.T, text string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	// What it finds wrong is its output, and there is none otherwise.
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// A screen is a terminal in a guest, of 132x24 so that no column is cut, in which smcr top runs.
type screen struct {
	t *testing.T
	h *host
}

const tmuxSocket = "/tmp/tmux.smcr"

// startTop starts smcr top in a terminal.
func startTop(t *testing.T, h *host) *screen {
	t.Helper()
	h.run(t, "tmux", "-u", "-S", tmuxSocket, "-f", "/dev/null", "new-session", "-d", "-x", "132", "-y", "24", h.smcr, "top", "--interval", "500ms")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), commandLimit)
		defer cancel()
		_, _ = h.Run(ctx, "tmux", "-S", tmuxSocket, "kill-server") // it ends with smcr top
	})
	return &screen{t, h}
}

// key presses a key and waits until the screen has all parts.
func (s *screen) key(key string, parts ...string) {
	s.t.Helper()
	s.h.run(s.t, "tmux", "-S", tmuxSocket, "send-keys", key)
	s.want(parts...)
}

// want waits until the screen has a match of each pattern.
func (s *screen) want(patterns ...string) {
	s.t.Helper()
	testkind.Eventually(s.t, s.h.Name()+" shows what it must", func() (any, bool) {
		shown := s.h.run(s.t, "tmux", "-S", tmuxSocket, "capture-pane", "-p")
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(shown) {
				return fmt.Sprintf("no %q in\n%s", p, shown), false
			}
		}
		return nil, true
	})
}

// testTop looks at the views of smcr top while the kernel carries data.
func testTop(t *testing.T, a, b *host) {
	netnstest.RequireTools(t, "tmux")
	server := b.addr + ":5007"
	b.start(t, "listening", b.peer, "serve", server)
	a.start(t, "echoed", a.peer, "connect", "-n", "2", "-bytes", "100000", "-every", "50ms", server)
	g := queryOne[linkGroup](t, a, "linkgroup", "list")
	s := startTop(t, a)
	rate := `[0-9.]+[KM]?`
	s.want(`stack kernel`, `Groups 1  Links 1  Conns 2 `, `RX [1-9][0-9.]*[KM]B/s  TX [1-9][0-9.]*[KM]B/s  Calls [1-9]`)
	s.key("1", `kernel +`, `rxe0 +eth0`)
	s.key("2", regexp.QuoteMeta(g.ID)+` .*SINGLE`)
	s.key("3", g.ID+` .*rxe0`, `ACTIVE`)
	s.key("4", regexp.QuoteMeta(server)+` +`+regexp.QuoteMeta(a.addr)+`:\d\S* +ACTIVE SMCR +`+g.ID+` +`+rate+` +`+rate+` +`+rate)
	s.key("5", `1 +.*client +0x03010000`, `peer declined`)
	a.run(t, "tmux", "-S", tmuxSocket, "send-keys", "q")
	testkind.Eventually(t, "smcr top ends", func() (any, bool) {
		_, err := a.Run(t.Context(), "tmux", "-S", tmuxSocket, "has-session")
		return err, err != nil
	})
}
