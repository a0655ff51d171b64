// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// sockapi runs testdata/sockapi.py, with the client on host from and the server on A, and
// returns its answers.
func (l *lab) sockapi(from *netnstest.Host, port string, start func(h *netnstest.Host, argv ...string) *netnstest.Process) map[string][]string {
	l.t.Helper()
	return l.sockapiAt(from, "0.0.0.0", l.A.Addr(), port, start)
}

// scripts copies files of testdata to a directory that every user can read. The module may be below
// one that others cannot, such as /root.
func (l *lab) scripts(names ...string) (dir string) {
	l.t.Helper()
	dir, err := os.MkdirTemp("", "smcr-e2e-scripts-")
	if err == nil {
		l.t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	for _, name := range names {
		text, rerr := os.ReadFile(filepath.Join("testdata", name))
		file := filepath.Join(dir, name)
		err = errors.Join(err, rerr, os.WriteFile(file, text, 0o644), os.Chmod(file, 0o644))
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return dir
}

// sockapiAt is sockapi for a server that listens on address at, and a client that connects
// to address to.
func (l *lab) sockapiAt(from *netnstest.Host, at, to, port string, start func(h *netnstest.Host, argv ...string) *netnstest.Process) map[string][]string {
	l.t.Helper()
	script := filepath.Join(l.scripts("sockapi.py", "sockranges.py"), "sockapi.py")
	server := start(l.A, "/usr/bin/python3", "-u", script, "server", at, port)
	client := start(from, "/usr/bin/python3", "-u", script, "client", to, port)
	answers := map[string][]string{}
	for _, p := range []*netnstest.Process{server, client} {
		if err := p.Wait(2 * time.Minute); err != nil {
			l.t.Errorf("%v\n%s", err, p.Log())
		}
		for line := range strings.Lines(p.Log()) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && strings.Count(k, "/") == 2 {
				answers[k] = append(answers[k], v)
			}
		}
		if l.t.Failed() {
			l.t.Fatalf("both programs:\n%s\n%s", server.Log(), client.Log())
		}
	}
	return answers
}

// TestSocketAPI compares the socket API over SMC-R with that over TCP (RFC 7609, appendix
// B): urgent data, options, flags, ways to close.
func TestSocketAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3")
	tcp := l.sockapi(l.B, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	smc := l.sockapi(l.B, "7002", l.under)
	sameAnswers(t, tcp, smc)
}

// sameAnswers checks that the answers are those of TCP.
func sameAnswers(t *testing.T, tcp, smc map[string][]string) {
	t.Helper()
	if len(tcp) < 150 {
		t.Errorf("only %d answers over TCP", len(tcp))
	}
	keys := slices.Sorted(maps.Keys(tcp))
	for k := range smc {
		if tcp[k] == nil {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		if want, got := strings.Join(tcp[k], ", "), strings.Join(smc[k], ", "); got != want {
			t.Errorf("%s\n\tTCP   %s\n\tSMC   %s", k, want, got)
		}
	}
}

// TestSocketRanges compares whole ranges of calls over SMC-R with those over TCP: every
// number of a socket option, the ioctl() requests, flags, memory that cannot be used,
// control messages.
func TestSocketRanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		v6        bool
		as        []string // runs the program with less rights
		scenarios string   // empty: all
	}{
		{name: "IPv4"},
		{name: "IPv6", v6: true, scenarios: "options_read,options_set,ioctl_reads,ioctl_writes,peer_options"},
		{name: "without rights", as: []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"}, scenarios: "options_set,ioctl_reads,ioctl_writes"},
		{name: "without capabilities", as: []string{"setpriv", "--inh-caps=-all", "--bounding-set=-all"}, scenarios: "options_set,ioctl_reads,ioctl_writes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.name != "IPv4" {
				t.Skip("the other cases take longer")
			}
			t.Parallel()
			l := newLab(t, "/usr/bin/python3", "setpriv")
			at, to := "0.0.0.0", l.A.Addr()
			if tt.v6 {
				at, to = "::", l.A.Addr6()
			}
			env := []string{"env", "SOCKRANGES=1", "SOCKAPI=" + tt.scenarios}
			tcp := l.sockapiAt(l.B, at, to, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
				argv = slices.Concat(env, tt.as, argv)
				return h.Go(t, argv[0], argv[1:]...)
			})
			smc := l.sockapiAt(l.B, at, to, "7002", func(h *netnstest.Host, argv ...string) *netnstest.Process {
				return l.under(h, slices.Concat(env, tt.as, argv)...)
			})
			sameAnswers(t, tcp, smc)
		})
	}
}
