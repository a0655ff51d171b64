// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

const (
	metricsPort = 9791
	deployDir   = "../../../deploy/prometheus"
)

// TestPromtool checks the metrics, the alert rules with their tests, and the example of a
// configuration with Prometheus' own tool.
func TestPromtool(t *testing.T) {
	netnstest.Require(t, "promtool")
	metrics, err := os.ReadFile("../../metrics/testdata/sample.prom")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, input string }{
		{"check metrics", string(metrics)},
		{"check rules smcr.rules.yaml", ""},
		{"test rules smcr.rules.test.yaml", ""},
		{"check config prometheus.yaml", ""},
	} {
		cmd := exec.CommandContext(t.Context(), "promtool", strings.Fields(tt.args)...)
		cmd.Dir, cmd.Stdin = deployDir, strings.NewReader(tt.input)
		out, err := cmd.CombinedOutput()
		// What check metrics finds wrong is its output, and there is none otherwise.
		if err != nil || tt.input != "" && len(out) > 0 {
			t.Errorf("promtool %s: %v\n%s", tt.args, err, out)
		}
	}
}

// A prometheus is a Prometheus server on a host.
type prometheus struct {
	l *lab
	h *netnstest.Host
}

// startPrometheus starts a server on a host that scrapes the targets, at each interval, and
// waits until it has scraped all of them. targets are addresses by the name of the instance.
func (l *lab) startPrometheus(h *netnstest.Host, interval time.Duration, targets map[string]string) *prometheus {
	l.t.Helper()
	rules, err := filepath.Abs(filepath.Join(deployDir, "smcr.rules.yaml"))
	if err != nil {
		l.t.Fatal(err)
	}
	dir := l.t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: %v, scrape_timeout: %[1]v, evaluation_interval: %[1]v}\nrule_files: [%[2]q]\nscrape_configs:\n- job_name: smcr\n  static_configs:\n", interval, rules)
	for instance, addr := range targets {
		config += fmt.Sprintf("  - {targets: [%q], labels: {instance: %q}}\n", addr, instance)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		l.t.Fatal(err)
	}
	p := h.Go(l.t, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	server := &prometheus{l, h}
	l.t.Cleanup(func() {
		if l.t.Failed() {
			l.t.Logf("prometheus:\n%s", p.Log())
		}
	})
	err = netnstest.Until(startTime, func() error {
		select {
		case <-p.Done():
			return netnstest.Stop(errors.New("prometheus has ended"))
		default:
		}
		up, err := server.query(`sum(up{job="smcr"})`)
		if err == nil && up != float64(len(targets)) {
			err = fmt.Errorf("%v of %d targets answer", up, len(targets))
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return server
}

// api returns the data of an answer of the HTTP API.
func (p *prometheus) api(path string, to any) error {
	out, err := p.h.Output(p.l.t.Context(), "curl", "-s", "--max-time", "10", "http://127.0.0.1:9090/api/v1/"+path)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Data, to)
}

// errNoValue means that a query has no or several results.
var errNoValue = errors.New("not one value")

// query returns the only value of an expression now.
func (p *prometheus) query(expr string) (float64, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := p.api("query?query="+url.QueryEscape(expr), &data); err != nil {
		return 0, fmt.Errorf("%s: %w", expr, err)
	}
	if len(data.Result) != 1 {
		return 0, fmt.Errorf("%s: %w but %d", expr, errNoValue, len(data.Result))
	}
	text, _ := data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}

// want waits until an expression has a value.
func (p *prometheus) want(expr string, want float64) {
	p.l.t.Helper()
	err := netnstest.Until(settleTime, func() error {
		got, err := p.query(expr)
		if err == nil && got != want {
			err = fmt.Errorf("%s is %v, want %v", expr, got, want)
		}
		return err
	})
	if err != nil {
		p.l.t.Error(err)
	}
}

// A shownStack is what smcr stats shows of a stack, as far as the tests compare it.
type shownStack struct {
	SMCR struct {
		ClientV1 float64 `json:"client_v1"`
		ServerV1 float64 `json:"server_v1"`
		RX, TX   struct {
			Bytes, Calls float64
			Buffers      struct{ Alloc, Reuse float64 }
			CallSizes    []struct{ Count float64 } `json:"call_sizes"`
		}
	}
	Fallbacks struct {
		Client  float64
		Reasons []struct {
			Reason string
			Count  float64
		}
	}
	HandshakeTimes struct {
		Client, Server struct {
			Sum     float64 `json:"sum_ns"`
			Classes []struct{ Count float64 }
		}
	} `json:"handshake_times"`
	Engine struct{ Threads float64 }
}

// shown returns what smcr stats shows of the stack of a host.
func (l *lab) shown(h *netnstest.Host) shownStack {
	l.t.Helper()
	var rows []shownStack
	out := l.smcr(h, "--backend", "user", "stats", "show", "--absolute", "--output", "json")
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		l.t.Fatal(err, out)
	}
	return rows[0]
}

// TestPrometheus: a Prometheus server scrapes a stack that serves metrics itself, confined, and
// an exporter without rights. What it answers is what smcr stats shows.
func TestPrometheus(t *testing.T) {
	l := newLab(t, "prometheus", "curl", "setpriv")
	a, b := fmt.Sprintf("%s:%d", l.A.Addr(), metricsPort), fmt.Sprintf("%s:%d", l.B.Addr(), metricsPort)
	stack := l.serve(l.A, "--metrics", a)
	l.serve(l.B, "--user-fds", "6") // enough for one connection
	argv := as(thirdUser, bin("smcr"), "exporter", "--listen", b)
	exporter := l.B.Go(t, argv[0], argv[1:]...)
	if err := exporter.WaitOutput("msg=exporting", startTime); err != nil {
		t.Fatal(err, exporter.Log())
	}
	p := l.startPrometheus(l.A, 500*time.Millisecond, map[string]string{a: a, b: b})

	l.server()
	client := l.under(l.A, bin("probe"), "client", l.B.Addr()+":5001", "3")
	if err := client.WaitOutput("holding 3 connections", startTime); err != nil {
		t.Fatal(err)
	}
	// A peer without SMC: one connection stays TCP.
	plain := l.B.Go(t, bin("probe"), "server", l.B.Addr()+":5002")
	if err := plain.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	tcp := l.under(l.A, bin("probe"), "client", l.B.Addr()+":5002", "1")
	if err := tcp.WaitOutput("holding 1 connections", startTime); err != nil {
		t.Fatal(err)
	}

	// A peer that does not announce SMC for the second one, because the server's user has as much as it may have.
	argv = as(hostileUser, underArgv(bin("probe"), "server", l.B.Addr()+":5003")...)
	if err := l.B.Go(t, argv[0], argv[1:]...).WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	var few []*netnstest.Process
	for range 2 {
		few = append(few, l.under(l.A, bin("probe"), "client", l.B.Addr()+":5003", "1"))
		if err := few[len(few)-1].WaitOutput("holding 1 connections", startTime); err != nil {
			t.Fatal(err)
		}
	}

	of := func(host, name string, labels ...string) string {
		return "smcr_" + name + "{" + strings.Join(append(labels, `stack="user"`, fmt.Sprintf("instance=%q", host)), ",") + "}"
	}
	for _, host := range []string{a, b} {
		p.want(of(host, "up"), 1)
		p.want(of(host, "connections"), 4)
		p.want(of(host, "links", `state="active"`), 1)
		p.want("sum("+of(host, "link_groups")+")", 1)
	}
	terminate(t, client)
	terminate(t, tcp)
	for _, c := range few {
		terminate(t, c)
	}
	l.wantNoConnections(l.A, l.B)
	for host, h := range map[string]*netnstest.Host{a: l.A, b: l.B} {
		p.want(of(host, "connections"), 0)
		s := l.shown(h)
		if s.SMCR.TX.Bytes == 0 || s.SMCR.ClientV1+s.SMCR.ServerV1 != 4 {
			t.Errorf("%s has carried nothing: %+v", host, s)
		}
		p.want(of(host, "connections_opened_total", `side="client"`, `version="1"`), s.SMCR.ClientV1)
		p.want(of(host, "connections_opened_total", `side="server"`, `version="1"`), s.SMCR.ServerV1)
		p.want(of(host, "bytes_total", `direction="receive"`), s.SMCR.RX.Bytes)
		p.want(of(host, "bytes_total", `direction="send"`), s.SMCR.TX.Bytes)
		p.want(of(host, "requests_total", `direction="send"`), s.SMCR.TX.Calls)
		p.want(of(host, "request_size_bytes_bucket", `direction="send"`, `le="8192"`), s.SMCR.TX.CallSizes[0].Count)
		p.want(of(host, "buffer_allocations_total", `direction="receive"`), s.SMCR.RX.Buffers.Alloc)
		p.want(of(host, "buffer_reuses_total", `direction="receive"`), s.SMCR.RX.Buffers.Reuse)
		p.want("sum("+of(host, "fallbacks_total", `side="client"`)+")", s.Fallbacks.Client)
		p.want(of(host, "handshake_duration_seconds_sum", `side="client"`), s.HandshakeTimes.Client.Sum/1e9)
		p.want(of(host, "handshake_duration_seconds_sum", `side="server"`), s.HandshakeTimes.Server.Sum/1e9)
		p.want(of(host, "engine_threads"), s.Engine.Threads)
	}
	p.want(of(a, "fallbacks_total", `side="client"`, `reason="peer_without_smc"`), 2)
	p.want(of(b, "fallbacks_total", `side="server"`, `reason="no_memory"`), 1)
	p.want(of(a, "handshake_duration_seconds_count", `side="client"`), 4)
	p.want("count("+of(a, "engine_cpu_seconds_total")+" > 0)", 1)
	p.rulesWork()
	// Browsers see a page at the same addresses.
	for addr, peer := range map[string]string{a: l.B.Addr(), b: l.A.Addr()} {
		for path, want := range map[string]string{"/": "<!doctype html>", "/state.json": peer, "/topology.svg": "<svg"} {
			out, err := l.A.Output(t.Context(), "curl", "-sf", "--max-time", "10", "http://"+addr+path)
			if err != nil || !strings.Contains(strings.ToLower(out), want) {
				t.Errorf("%s%s: %v, want %q in\n%s", addr, path, err, want, out)
			}
		}
	}

	terminate(t, exporter)
	wantEnd(t, exporter)
	terminate(t, stack)
	wantEnd(t, stack)
	if strings.Contains(stack.Log(), "there are no metrics") {
		t.Errorf("the log of the stack:\n%s", stack.Log())
	}
}

// rulesWork checks that the server can evaluate all alert rules.
func (p *prometheus) rulesWork() {
	p.l.t.Helper()
	err := netnstest.Until(settleTime, func() error {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.api("rules", &data); err != nil {
			return err
		}
		n := 0
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				n++
				if r.Health != "ok" {
					return fmt.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		if n == 0 {
			return errors.New("there are no rules")
		}
		return nil
	})
	if err != nil {
		p.l.t.Error(err)
	}
}

// TestMetricsTakeover: a stack that takes over serves the metrics at the same address, with
// the counters of the old one, whose connections it shows until they end.
func TestMetricsTakeover(t *testing.T) {
	l := newLab(t, "curl")
	addr := fmt.Sprintf("127.0.0.1:%d", metricsPort)
	before := l.serve(l.A, "--metrics", addr)
	l.serve(l.B)
	l.server()
	client := l.under(l.A, bin("probe"), "client", l.B.Addr()+":5001", "2")
	if err := client.WaitOutput("holding 2 connections", startTime); err != nil {
		t.Fatal(err)
	}
	scrape := func(lines ...string) {
		t.Helper()
		err := netnstest.Until(settleTime, func() error {
			out, err := l.A.Output(t.Context(), "curl", "-sf", "--max-time", "10", "http://"+addr+"/metrics")
			if err != nil {
				return err
			}
			for _, line := range lines {
				if !strings.Contains(out, "\n"+line+"\n") {
					return fmt.Errorf("no %q in\n%s", line, out)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	const opened = `smcr_connections_opened_total{side="client",stack="user",version="1"} 2`
	scrape(opened, `smcr_connections{stack="user"} 2`, "smcr_stacks 1")
	next := l.takeOver(l.A, "--metrics", addr)
	scrape(opened, `smcr_connections{stack="user"} 0`, `smcr_connections{stack="ending-0"} 2`, "smcr_stacks 2", `smcr_up{stack="ending-0"} 1`)
	terminate(t, client)
	if err := before.Wait(endTime); err != nil {
		t.Errorf("the old stack: %v", err)
	}
	scrape(opened, "smcr_stacks 1")
	terminate(t, next)
	wantEnd(t, next)

	// Without a stack that hands over, an address that is in use is an error.
	exporter := l.A.Go(t, bin("smcr"), "exporter", "--listen", addr)
	if err := exporter.WaitOutput("msg=exporting", startTime); err != nil {
		t.Fatal(err)
	}
	refused := l.A.Go(t, bin("smcr"), "serve", "--metrics", addr)
	if err := refused.Wait(startTime); err == nil || !strings.Contains(refused.Log(), "listen on "+addr+": bind: address already in use") {
		t.Errorf("%v\n%s", err, refused.Log())
	}
	scrape("smcr_stacks 0")
}
