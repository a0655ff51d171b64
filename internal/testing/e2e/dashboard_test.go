// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// A dashboard is what the tests read of the dashboard for Grafana.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
			Multi      bool
		}
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		Targets []struct{ RefID, Expr string }
	}
}

func readDashboard(t testing.TB) (d dashboard) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deployDir, "smcr.dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	variableRE    = regexp.MustCompile(`\$(\w+)`)
	labelValuesRE = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
)

// expand replaces the variables of an expression.
func expand(t testing.TB, expr string, variables map[string]string) string {
	t.Helper()
	return variableRE.ReplaceAllStringFunc(expr, func(s string) string {
		v, ok := variables[s[1:]]
		if !ok {
			t.Errorf("%s: there is no variable %s", expr, s)
		}
		return v
	})
}

// variables asks the server for the values of the variables of a dashboard, as Grafana does,
// and chooses all of them: variables with several values become regular expressions.
func (p *prometheus) variables(d dashboard) (chosen map[string]string, found map[string][]string) {
	t := p.l.t
	t.Helper()
	chosen, found = map[string]string{}, map[string][]string{}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var query struct{ Query string }
		if err := json.Unmarshal(v.Query, &query); err != nil {
			t.Fatal(err)
		}
		m := labelValuesRE.FindStringSubmatch(expand(t, query.Query, chosen))
		if m == nil {
			t.Fatalf("variable %s: the query is %s", v.Name, v.Query)
		}
		var values []string
		if err := p.api("label/"+m[2]+"/values?match[]="+url.QueryEscape(m[1]), &values); err != nil || len(values) == 0 {
			t.Fatalf("variable %s: %v, %v", v.Name, values, err)
		}
		found[v.Name], chosen[v.Name] = slices.Clone(values), values[0]
		if !v.Multi {
			continue
		}
		for i := range values {
			// Within a string of PromQL.
			values[i] = strings.ReplaceAll(regexp.QuoteMeta(values[i]), `\`, `\\`)
		}
		chosen[v.Name] = "(" + strings.Join(values, "|") + ")"
	}
	return chosen, found
}

// A series is a result of a range query: labels, and values at times.
type series struct {
	Metric map[string]string `json:"metric"`
	Values [][2]any          `json:"values"` // seconds since 1970, and a number as text
}

// shown returns the number of finite values of a result, and whether one is not zero.
func shown(result []series) (n int, some bool) {
	for _, s := range result {
		for _, v := range s.Values {
			text, _ := v[1].(string)
			if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
				n++
				some = some || f != 0
			}
		}
	}
	return n, some
}

// panels sends the queries of all panels for the time since start, and returns the results by
// panel and query. Each query must have a result, and each panel one that is not zero, except
// those whose title is in zero: they show errors that there are none of.
func (p *prometheus) panels(d dashboard, start time.Time, step time.Duration, variables map[string]string, zero ...string) map[int]map[string][]series {
	t := p.l.t
	t.Helper()
	results := map[int]map[string][]series{}
	now := time.Now()
	for _, panel := range d.Panels {
		if panel.Type == "row" {
			continue
		}
		results[panel.ID] = map[string][]series{}
		some := false
		for _, q := range panel.Targets {
			expr := expand(t, q.Expr, variables)
			var data struct{ Result []series }
			path := fmt.Sprintf("query_range?query=%s&start=%d&end=%.3f&step=%v", url.QueryEscape(expr), start.Unix(), float64(now.UnixMilli())/1000, step.Seconds())
			if err := p.api(path, &data); err != nil {
				t.Errorf("panel %q: %s: %v", panel.Title, expr, err)
			}
			n, nonzero := shown(data.Result)
			if n == 0 {
				t.Errorf("panel %q shows nothing: %s", panel.Title, expr)
			}
			some = some || nonzero
			results[panel.ID][q.RefID] = data.Result
		}
		if some == slices.Contains(zero, panel.Title) {
			t.Errorf("panel %q shows values that are not zero: %t", panel.Title, some)
		}
	}
	if len(results) == 0 {
		t.Error("there are no panels")
	}
	return results
}

// browsing requests parts of a file again and again, over connections that it opens and closes.
const browsing = `
import http.client, os, random, sys, threading, time, traceback
host, port, size, most, pause, threads = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5]), int(sys.argv[6])
def browse(r):
    while True:
        c = http.client.HTTPConnection(host, port, timeout=60)
        for _ in range(r.randint(1, most)):
            c.request('GET', '/big', headers={'Range': f'bytes=0-{r.randrange(size)}'})
            c.getresponse().read()
            time.sleep(r.uniform(0, 2 * pause))
        c.close()
def run(r):
    try: browse(r)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
for i in range(threads): threading.Thread(target=run, args=(random.Random(i),)).start()
`

// browse starts a client on host B that requests up to size bytes at a time from a web server,
// and up to most times over each connection.
func (l *lab) browse(port, size, most int, pause time.Duration, threads int, flags ...string) *netnstest.Process {
	l.t.Helper()
	argv := append([]string{"run", "--mode", "user", "-v"}, flags...)
	argv = append(argv, "--", "python3", "-c", browsing, l.A.Addr(), fmt.Sprint(port), fmt.Sprint(size), fmt.Sprint(most), fmt.Sprint(pause.Seconds()), fmt.Sprint(threads))
	return l.B.Go(l.t, bin("smcr"), argv...)
}

// TestDashboard: each query of the dashboard for Grafana has a result, and each panel shows
// what it is for, on two hosts with two devices each: traffic, connections that become TCP, a
// device that goes down and up, lost packets, forged packets.
//
// With SMCR_E2E_DASHBOARD=FILE, this takes some minutes, and FILE gets the results as JSON.
func TestDashboard(t *testing.T) {
	file := os.Getenv("SMCR_E2E_DASHBOARD")
	// A step is so short that none of the samples is left out.
	interval, step, d := time.Second, 250*time.Millisecond, 2*time.Second
	if file != "" {
		interval, step, d = 2*time.Second, 2*time.Second, 7*time.Minute
	}
	l, _ := newSwitchedLab(t, 2, "prometheus", "curl", "nginx", "iperf3", "python3", "setpriv", "tshark")
	targets := map[string]string{}
	for instance, h := range map[string]*netnstest.Host{"hostA": l.A, "hostB": l.B} {
		targets[instance] = fmt.Sprintf("%s:%d", h.Addr(), metricsPort)
		l.serveAsIs(h, "--metrics", targets[instance])
		l.ownAddresses(h)
	}
	p := l.startPrometheus(l.A, interval, targets)
	start := time.Now()

	dir := t.TempDir()
	l.nginx(dir, 1<<20)
	small := t.TempDir()
	writeFile(t, filepath.Join(small, "big"), 100)
	serveSmall := func(port string) []string {
		return []string{"python3", "-m", "http.server", "--bind", l.A.Addr(), "--directory", small, port}
	}
	plain, short := serveSmall("8080"), serveSmall("8081")
	l.A.Go(t, plain[0], plain[1:]...) // without SMC
	l.under(l.A, short...)
	for _, port := range []int{8080, 8081} {
		if err := l.A.WaitListen(port, startTime); err != nil {
			t.Fatal(err)
		}
	}
	clients := []*netnstest.Process{
		l.browse(80, 1<<20, 20, 50*time.Millisecond, 8, "--no-adapt"),
		l.browse(8080, 100, 1, time.Second, 2, "--no-adapt"),
		l.browse(8081, 100, 1, 500*time.Millisecond, 1), // connections that are too short for SMC-R
	}
	// Real time: panels show what goes on for a while.
	pass := func(d time.Duration) { time.Sleep(d) }
	const redundant = `sum(smcr_link_groups{type="symmetric"})` // one on each host
	p.want(redundant, 2)
	iperf := l.under(l.A, "iperf3", "-s", "-B", l.A.Addr())
	if err := l.A.WaitListen(flapPort, startTime); err != nil {
		t.Fatal(err, iperf.Log())
	}
	clients = append(clients, l.under(l.B, "iperf3", "-c", l.A.Addr(), "-t", "0", "--bidir", "-P", "2", "-b", "10M"))
	// Of those of iperf3, some use the second link, which has fewer.
	p.want("min(smcr_connections) >= bool 10", 1)
	pass(d * 4 / 10)

	setLink := func(up bool) {
		t.Helper()
		if err := l.B.SetLink(1, up); err != nil {
			t.Fatal(err)
		}
	}
	setLink(false)
	p.want("sum(smcr_failovers_total) > bool 0", 1)
	p.want("count(smcr_device_port_active == 0)", 1)
	p.want(redundant, 0)
	pass(d / 10)
	setLink(true)
	p.want(redundant, 2)
	pass(d * 2 / 10)

	if err := l.B.SetLoss(1, 0.01); err != nil {
		t.Fatal(err)
	}
	p.want("sum(smcr_retransmitted_packets_total) > bool 0", 1)
	pass(d / 10)
	if err := l.B.SetLoss(1, 0); err != nil {
		t.Fatal(err)
	}
	pass(d / 10)
	qpn := l.peerQPN(l.A)
	argv := as(hostileUser, bin("hostile"), "sweep", l.A.Addr(), l.B.Addr(), strconv.Itoa(qpn), "0", "1000")
	if forge := l.A.Go(t, argv[0], argv[1:]...); forge.Wait(time.Minute) != nil {
		t.Fatal(forge.Log())
	}
	// As Grafana computes it from the interval of the data source.
	rate := max(step+interval, 4*interval).String()
	p.want("sum(rate(smcr_refused_packets_total["+rate+"])) > bool 0", 1)
	pass(max(step, d/10)) // this is then at one of the steps
	for _, c := range clients {
		select {
		case <-c.Done():
			t.Errorf("a client has ended: %s", c.Log())
		default:
		}
	}

	board := readDashboard(t)
	variables, found := p.variables(board)
	if want := map[string][]string{"job": {"smcr"}, "instance": {"hostA", "hostB"}, "stack": {"user"}}; !reflect.DeepEqual(found, want) {
		t.Errorf("variables have the values %v, want %v", found, want)
	}
	variables["__rate_interval"] = rate
	results := p.panels(board, start, step, variables, "Silent stacks", "Hosts without a stack", "Internal errors", "Handshake errors")
	if file == "" {
		return
	}
	b, err := json.Marshal(map[string]any{"from": start.Unix(), "to": time.Now().Unix(), "results": results})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}
