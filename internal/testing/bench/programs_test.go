// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestParseIperf3(t *testing.T) {
	// iperf3 3.12, shortened.
	const good = `{"start": {}, "end": {"sum_sent": {"bytes": 2000, "seconds": 2.0}, "sum_received": {"start": 0, "end": 2.001, "seconds": 2.5, "bytes": 1000, "bits_per_second": 1}}}`
	bytes, seconds, err := ParseIperf3([]byte(good))
	if err != nil || bytes != 1000 || seconds != 2.5 {
		t.Errorf("%v bytes, %v s, %v", bytes, seconds, err)
	}
	for in, want := range map[string]string{
		"": "JSON", `{"end": {}}`: "nothing was received",
		`{"error": "unable to connect to server: Connection refused"}`: "Connection refused",
	} {
		if _, _, err := ParseIperf3([]byte(in)); !errors.Is(err, ErrOutput) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestParseRedis(t *testing.T) {
	// redis-benchmark 7.0.15.
	const good = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"SET","100.00","0.3","0.1","0.3","0.5","0.6","1.2"
"GET","300.00","0.3","0.1","0.3","0.5","0.6","1.2"
`
	got, err := ParseRedis([]byte(good))
	if err != nil || math.Abs(got-150) > 1e-9 {
		t.Errorf("%v, %v; want 150: 400 requests in 100/100 + 100/300 s each", got, err)
	}
	for _, bad := range []string{"", strings.SplitAfter(good, "\n")[0], `"SET","0.00"`, `"SET","1.2.3"`} {
		if got, err := ParseRedis([]byte(bad)); !errors.Is(err, ErrOutput) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

func TestParseWrk(t *testing.T) {
	// wrk 4.1.0.
	const good = `Running 1s test @ http://10.77.0.1:8080/
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     0.95ms  190.22us   4.12ms   91.29%
    Req/Sec    52.15k     1.51k   53.78k    90.91%
  57025 requests in 1.10s, 13.38MB read
Requests/sec:  51850.73
Transfer/sec:     12.16MB
`
	got, err := ParseWrk([]byte(good))
	if err != nil || got != 51850.73 {
		t.Errorf("%v, %v", got, err)
	}
	for in, want := range map[string]string{
		"": "wrk",
		strings.Replace(good, "Requests/sec", "  Socket errors: connect 0, read 3, write 0, timeout 0\nRequests/sec", 1): "read 3",
		strings.Replace(good, "Requests/sec", "  Non-2xx or 3xx responses: 7\nRequests/sec", 1):                          "responses: 7",
		"Requests/sec:      0.00\n": "0.00",
	} {
		if got, err := ParseWrk([]byte(in)); !errors.Is(err, ErrOutput) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

func TestParseQperf(t *testing.T) {
	// qperf 0.4.11: as it is, with -uu -vvu, and with -e 6.
	for in, want := range map[string]float64{
		"tcp_lat:\n    latency  =  28.2 us\n": 28.2e-6,
		"tcp_lat:\n    latency   =       15045 ns\n    msg_size  =           1 bytes\n    time      =  1000000000 ns\n": 15045e-9,
		"tcp_lat:\n    latency  =  16829.6 ns\n": 16829.6e-9,
		"tcp_lat:\n    latency  =  1,204 ms\n":   1.204,
		"tcp_lat:\n    latency  =  2 sec\n":      2,
	} {
		got, err := ParseQperf([]byte(in))
		if err != nil || math.Abs(got-want) > 1e-12 {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{
		"", "tcp_lat:\n", "tcp_lat:\n    latency  =  0 ns\n", "tcp_lat:\n    latency  =  1.2.3 us\n",
		"tcp_lat:\n    latency  =  5 bytes\n", "failed to connect\n",
	} {
		if got, err := ParseQperf([]byte(bad)); !errors.Is(err, ErrOutput) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

func TestParseSummary(t *testing.T) {
	for log, want := range map[string]Summary{
		"other words\nsmcr: 51 connections over SMC-R, 2 over TCP: the peer does not speak SMC\n": {SMC: 51, TCP: 2},
		"smcr: 1 connection over SMC-R, 0 over TCP\n":                                             {SMC: 1},
		"smcr: 0 connections over SMC-R, 1 over TCP, 7 local, 2 failed\n":                         {TCP: 1, Local: 7},
	} {
		if s, err := ParseSummary([]byte(log)); err != nil || s != want {
			t.Errorf("%q: %+v, %v, want %+v", log, s, err, want)
		}
	}
	if _, err := ParseSummary([]byte("killed")); !errors.Is(err, ErrOutput) {
		t.Errorf("%v", err)
	}
}
