// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

var localRE = regexp.MustCompile(`(?m)^smcr: \d+ connections? over SMC-R, (\d+) over TCP(?:, (\d+) local(?: \((\d+) joined\))?)?`)

var lateRE = regexp.MustCompile(`(?m)^smcr: (\d+) over TCP: (?:the stack answered too late|.*the launcher was told too late)`)

// wantLocal checks that the summary of smcr run -v in a log has at least conns joined
// connections and none over TCP. gone is the number of clients that may have ended before
// they had their connections: their servers count these as TCP.
func wantLocal(t testing.TB, log string, conns, gone int) {
	t.Helper()
	m := localRE.FindStringSubmatch(log)
	if m == nil {
		t.Errorf("no summary of smcr run -v in\n%s", log)
		return
	}
	local, _ := strconv.Atoi(m[3])
	tcp, _ := strconv.Atoi(m[1])
	// A stack that opens its devices at that time may be too slow for the first ones.
	late := 0
	if m := lateRE.FindStringSubmatch(log); m != nil {
		late, _ = strconv.Atoi(m[1])
	}
	if local+late < conns || tcp < late || tcp > late+gone || late > 2+conns/10 {
		t.Errorf("%d local connections and %d over TCP, want at least %d and none:\n%s", local, tcp, conns, log)
	}
}

// wantIdle waits until a stack has no connections of programs.
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

// wantWithin checks that the summary of smcr run -v in a log has conns connections within the
// machine, all of them TCP between the programs' own sockets, and no others.
func wantWithin(t testing.TB, log string, conns int) {
	t.Helper()
	want := fmt.Sprintf("smcr: 0 connections over SMC-R, 0 over TCP, %d local\n", conns)
	if wired { // they never leave by a device, so nobody counts them
		want = "smcr: 0 connections over SMC-R, 0 over TCP\n"
	}
	if !strings.Contains(log, want) {
		t.Errorf("want %q:\n%s", want, log)
	}
}

// localDiffers has the answers in which TestLocalSocketAPI may differ from TCP: a socketpair
// has no direction that only one side has shut down for reading.
var localDiffers = map[string]string{
	"shut_read/client/poll": "POLLIN|POLLOUT|POLLHUP|POLLRDHUP",
	"shut_read/server/poll": "POLLIN|POLLOUT|POLLHUP|POLLRDHUP",
}

// TestLocalSocketAPI compares the socket API of local connections with that of TCP.
func TestLocalSocketAPI(t *testing.T) {
	l := newLab(t, "python3")
	tcp := l.sockapi(l.A, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	stack := l.serve(l.A)
	l.joins = true
	local := l.sockapi(l.A, "7002", l.under)
	localAnswers(t, tcp, local)
	l.wantIdle(l.A)
	terminate(t, stack)
}

// localAnswers is sameAnswers for local connections.
func localAnswers(t *testing.T, tcp, local map[string][]string) {
	t.Helper()
	for k, want := range localDiffers {
		// Both answers are right, because the other side may be slower.
		if got := local[k]; len(got) == 1 && (got[0] == want || got[0] == tcp[k][0]) {
			local[k] = tcp[k]
		}
	}
	differs := maps.Clone(sockapiDiffers)
	for k := range differs {
		// A kernel that refuses the programs of package lastclose leaves all of it to TCP.
		if slices.Equal(local[k], tcp[k]) {
			delete(differs, k)
		}
	}
	sameAnswers(t, tcp, local, differs)
}

// devBytes returns the number of bytes that a device of a host has received and sent.
func (l *lab) devBytes(h *netnstest.Host, dev string) int {
	l.t.Helper()
	out, err := h.Output(l.t.Context(), "cat", "/proc/net/dev")
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if name, rest, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == dev {
			fields := strings.Fields(rest)
			in, err := strconv.Atoi(fields[0])
			out, oerr := strconv.Atoi(fields[8])
			if err != nil || oerr != nil {
				l.t.Fatal(err, oerr)
			}
			return in + out
		}
	}
	l.t.Fatalf("no device %s in\n%s", dev, out)
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

// run runs a program on A under smcr run until it ends.
func (l *lab) run(limit time.Duration, argv ...string) *netnstest.Process {
	l.t.Helper()
	p := l.under(l.A, argv...)
	if err := p.Wait(limit); err != nil {
		l.t.Errorf("%v: %v\n%s", argv, err, p.Log())
	}
	return p
}

// TestLocalPrograms: with --local, programs of one host exchange bytes without another
// process between them, and the stack keeps nothing of connections that have ended. Without
// it they use TCP.
func TestLocalPrograms(t *testing.T) {
	l := newLab(t, "iperf3", "nginx", "curl", "wrk", "redis-server", "redis-benchmark")
	for _, tt := range []struct {
		name  string
		local bool
	}{{"--local", true}, {"default", false}} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			stack := l.serve(l.A)
			if tt.local {
				l.joined(stack)
			}
			base, err := descriptors(stack.Pid())
			if err != nil {
				t.Fatal(err)
			}
			gone := 0
			judge := func(p *netnstest.Process, conns int) {
				t.Helper()
				if tt.local {
					wantLocal(t, p.Log(), conns, gone)
				} else if m := localRE.FindStringSubmatch(p.Log()); m == nil || m[3] != "" || (m[2] == "") != wired || m[1] != "0" {
					t.Errorf("want connections within the machine alone:\n%s", p.Log())
				}
			}

			dir := t.TempDir()
			const size = 64 << 20
			nginx, digest := l.nginx(dir, size)
			before := l.devBytes(l.A, "lo")
			curl := l.run(time.Minute, "curl", "-sSf", "--noproxy", "*", "-o", filepath.Join(dir, "got"), "http://"+l.A.Addr()+"/big")
			judge(curl, 1)
			if got := digestOf(t, filepath.Join(dir, "got")); got != digest {
				t.Errorf("curl received the digest %s, want %s", got, digest)
			}
			if n := l.devBytes(l.A, "lo") - before; (n < size/50) != tt.local {
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
			gone = 20 // clients that wrk ends in the middle
			judge(nginx, 141)
			gone = 0

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
			before = l.devBytes(l.A, "lo")
			judge(l.run(time.Minute, "iperf3", "-c", "127.0.0.1", "-t", "1"), 2)
			if n := l.devBytes(l.A, "lo") - before; (n < 2<<20) != tt.local {
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

// newContainers is newLab for two hosts that are network namespaces of one machine.
func newContainers(t testing.TB, tools ...string) *lab {
	t.Helper()
	netnstest.Require(t, append([]string{"nsenter"}, tools...)...)
	return &lab{Pair: netnstest.New(t, netnstest.Options{OneMachine: true}), t: t}
}

// TestOtherMachine: stacks of two machines do not use local connections, although they
// can reach each other's sockets.
func TestOtherMachine(t *testing.T) {
	l := newLab(t)
	for _, h := range []*netnstest.Host{l.A, l.B} {
		l.serve(h)
	}
	server := l.probeServer()
	client := l.held(3)
	release(t, client)
	wantSummary(t, client.Log(), 3)
	if strings.Contains(client.Log(), "local") {
		t.Errorf("local connections:\n%s", client.Log())
	}
	terminate(t, server)
}
