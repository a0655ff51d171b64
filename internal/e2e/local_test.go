// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/netnstest"
)

var localRE = regexp.MustCompile(`(?m)^smcr: \d+ connections? over SMC-R, (\d+) over TCP(?:, (\d+) local)?`)

// wantLocal wants the summary of smcr run -v in a log to tell of local connections,
// at least conns, and of none over TCP.
func wantLocal(t testing.TB, log string, conns int) {
	t.Helper()
	m := localRE.FindStringSubmatch(log)
	if m == nil {
		t.Errorf("no summary of smcr run -v in\n%s", log)
		return
	}
	local, _ := strconv.Atoi(m[2])
	if local < conns || m[1] != "0" {
		t.Errorf("%d local connections and %s over TCP, want at least %d and none:\n%s", local, m[1], conns, log)
	}
}

// wantIdle waits until a stack has no connection of a program any more.
func (l *lab) wantIdle(h *netnstest.Host) {
	l.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		rows, err := l.rows(h, "connection")
		if err != nil {
			return netnstest.Stop(err)
		}
		if len(rows) > 0 {
			return fmt.Errorf("connections listed: %v", rows)
		}
		return nil
	}); err != nil {
		l.t.Error(err)
	}
}

// TestLocalSocketAPI asks the socket API the same questions of local connections
// and of TCP.
func TestLocalSocketAPI(t *testing.T) {
	l := newLab(t, "python3")
	tcp := l.sockapi(l.A, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	stack := l.serve(l.A)
	local := l.sockapi(l.A, "7002", l.under)
	sameAnswers(t, tcp, local, sockapiDiffers)
	terminate(t, stack)
}

// loBytes returns how many bytes the loopback device of a host has received.
func (l *lab) loBytes(h *netnstest.Host) int {
	l.t.Helper()
	out, err := h.Output(l.t.Context(), "cat", "/proc/net/dev")
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if name, rest, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "lo" {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				l.t.Fatal(err)
			}
			return n
		}
	}
	l.t.Fatalf("no loopback device in\n%s", out)
	return 0
}

// digestOf returns the SHA-256 of a file.
func digestOf(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// run runs a program on A under smcr run to its end.
func (l *lab) run(limit time.Duration, argv ...string) *netnstest.Process {
	l.t.Helper()
	p := l.under(l.A, argv...)
	if err := p.Wait(limit); err != nil {
		l.t.Errorf("%v: %v\n%s", argv, err, p.Log())
	}
	return p
}

// TestLocalPrograms: programs of one host exchange bytes without anybody between
// them, and the stack keeps nothing of connections that have ended. With --no-local
// they use TCP.
func TestLocalPrograms(t *testing.T) {
	l := newLab(t, "iperf3", "nginx", "curl", "wrk", "redis-server", "redis-benchmark")
	for _, tt := range []struct {
		name  string
		local bool
		flags []string
	}{{"local", true, nil}, {"no-local", false, []string{"--no-local"}}} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			stack := l.serve(l.A, tt.flags...)
			base, err := descriptors(stack.Pid())
			if err != nil {
				t.Fatal(err)
			}
			judge := func(p *netnstest.Process, conns int) {
				t.Helper()
				if tt.local {
					wantLocal(t, p.Log(), conns)
				} else if m := localRE.FindStringSubmatch(p.Log()); m == nil || m[2] != "" {
					t.Errorf("local connections in spite of --no-local:\n%s", p.Log())
				}
			}

			dir := t.TempDir()
			const size = 64 << 20
			nginx, digest := l.nginx(dir, size)
			before := l.loBytes(l.A)
			curl := l.run(time.Minute, "curl", "-sSf", "--noproxy", "*", "-o", filepath.Join(dir, "got"), "http://"+l.A.Addr()+"/big")
			judge(curl, 1)
			if got := digestOf(t, filepath.Join(dir, "got")); got != digest {
				t.Errorf("curl received the digest %s, want %s", got, digest)
			}
			if n := l.loBytes(l.A) - before; (n < size/100) != tt.local {
				t.Errorf("%d bytes over the loopback device for a file of %d", n, size)
			}
			small := "http://" + l.A.Addr() + "/nginx.conf"
			keep := l.run(time.Minute, "wrk", "-t1", "-c20", "-d1s", small)
			judge(keep, 20)
			short := l.run(time.Minute, "wrk", "-t1", "-c20", "-d2s", "-H", "Connection: close", small)
			judge(short, 100)
			for _, p := range []*netnstest.Process{keep, short} {
				if strings.Contains(p.Log(), "Socket errors") || strings.Contains(p.Log(), "Non-2xx") {
					t.Errorf("wrk failed:\n%s", p.Log())
				}
			}
			terminate(t, nginx)
			judge(nginx, 141)

			redis := l.under(l.A, "redis-server", "--bind", "127.0.0.1", "--port", "6379", "--save", "", "--appendonly", "no", "--dir", dir, "--daemonize", "no")
			if err := l.A.WaitListen(6379, startTime); err != nil {
				t.Fatal(err, redis.Log())
			}
			judge(l.run(time.Minute, "redis-benchmark", "-p", "6379", "-c", "50", "-n", "20000", "-t", "set,get", "-q"), 100)
			terminate(t, redis)

			iperf := l.under(l.A, "iperf3", "-s", "-1", "-B", "127.0.0.1")
			if err := l.A.WaitListen(5201, startTime); err != nil {
				t.Fatal(err, iperf.Log())
			}
			before = l.loBytes(l.A)
			judge(l.run(time.Minute, "iperf3", "-c", "127.0.0.1", "-t", "1"), 2)
			if n := l.loBytes(l.A) - before; (n < 1<<20) != tt.local {
				t.Errorf("%d bytes over the loopback device for iperf3", n)
			}
			wantEnd(t, iperf)

			l.wantIdle(l.A)
			if err := netnstest.Until(settleTime, func() error {
				n, err := descriptors(stack.Pid())
				if err == nil && n > base+4 {
					err = fmt.Errorf("the stack has %d descriptors, had %d", n, base)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			out := l.smcr(l.A, "--backend", "user", "stats", "show")
			if strings.Contains(out, "Local connections") != tt.local {
				t.Errorf("smcr stats show:\n%s", out)
			}
			terminate(t, stack)
		})
	}
}
