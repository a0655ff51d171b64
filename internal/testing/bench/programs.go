// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ErrOutput means that the output of a program has no result.
var ErrOutput = errors.New("bench: no result in the output")

// ParseIperf3 returns the bytes that the server of iperf3 received and the seconds that
// this took, from the JSON output of the client (iperf3 -J).
func ParseIperf3(out []byte) (bytes, seconds float64, err error) {
	var report struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bytes   float64 `json:"bytes"`
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, 0, fmt.Errorf("%w of iperf3: %w", ErrOutput, err)
	}
	if report.Error != "" {
		return 0, 0, fmt.Errorf("%w of iperf3: %s", ErrOutput, report.Error)
	}
	r := report.End.Received
	if r.Bytes <= 0 || r.Seconds <= 0 {
		return 0, 0, fmt.Errorf("%w of iperf3: nothing was received", ErrOutput)
	}
	return r.Bytes, r.Seconds, nil
}

var redisLine = regexp.MustCompile(`(?m)^"[A-Z]+","([0-9.]+)"`)

// ParseRedis returns the requests per second over all tests of redis-benchmark --csv: the
// harmonic mean, because each test made the same number of requests.
func ParseRedis(out []byte) (float64, error) {
	var inverse float64
	lines := redisLine.FindAllSubmatch(out, -1)
	for _, m := range lines {
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil || v <= 0 {
			return 0, fmt.Errorf("%w of redis-benchmark: %q", ErrOutput, m[0])
		}
		inverse += 1 / v
	}
	if len(lines) == 0 {
		return 0, fmt.Errorf("%w of redis-benchmark: %.200q", ErrOutput, out)
	}
	return float64(len(lines)) / inverse, nil
}

var (
	wrkRate  = regexp.MustCompile(`(?m)^Requests/sec:\s+([0-9.]+)$`)
	wrkError = regexp.MustCompile(`(?m)^\s*(Socket errors:.*|Non-2xx or 3xx responses:.*)$`)
)

// ParseWrk returns the requests per second in the output of wrk. Failed requests are an
// error.
func ParseWrk(out []byte) (float64, error) {
	if m := wrkError.FindSubmatch(out); m != nil {
		return 0, fmt.Errorf("%w of wrk: %s", ErrOutput, m[1])
	}
	m := wrkRate.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%w of wrk: %.200q", ErrOutput, out)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%w of wrk: %q", ErrOutput, m[0])
	}
	return v, nil
}

var qperfLine = regexp.MustCompile(`(?m)^\s*latency\s*=\s*([0-9.,]+) (\S+)$`)

// qperfUnits are the units of times in the output of qperf.
var qperfUnits = map[string]time.Duration{"ns": time.Nanosecond, "us": time.Microsecond, "ms": time.Millisecond, "sec": time.Second}

// ParseQperf returns the latency of qperf tcp_lat in seconds: one direction, half of a
// round trip.
func ParseQperf(out []byte) (float64, error) {
	m := qperfLine.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%w of qperf: %.200q", ErrOutput, out)
	}
	unit := qperfUnits[string(m[2])]
	// qperf groups the digits of long numbers.
	v, err := strconv.ParseFloat(strings.ReplaceAll(string(m[1]), ",", ""), 64)
	if err != nil || v <= 0 || unit == 0 {
		return 0, fmt.Errorf("%w of qperf: %q", ErrOutput, m[0])
	}
	return v * unit.Seconds(), nil
}

var summaryLine = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP(?:, (\d+) local)?`)

// Summary has the numbers of connections in the last line of smcr run -v.
type Summary struct{ SMC, TCP, Local int }

// ParseSummary returns how many connections used SMC-R and TCP, and how many stayed within the machine.
func ParseSummary(log []byte) (s Summary, err error) {
	m := summaryLine.FindSubmatch(log)
	if m == nil {
		return s, fmt.Errorf("%w of smcr run -v: %.500q", ErrOutput, log)
	}
	for i, n := range []*int{&s.SMC, &s.TCP, &s.Local} {
		if len(m[i+1]) == 0 {
			continue
		}
		if *n, err = strconv.Atoi(string(m[i+1])); err != nil {
			return s, fmt.Errorf("%w of smcr run -v: %w", ErrOutput, err)
		}
	}
	return s, nil
}
