// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// newContainers is newLab for two hosts that are network namespaces of one machine.
func newContainers(t testing.TB, tools ...string) *lab {
	t.Helper()
	netnstest.Require(t, append([]string{"nsenter"}, tools...)...)
	return &lab{Pair: netnstest.New(t, netnstest.Options{OneMachine: true}), t: t}
}

// wantWithin checks that the summary of smcr run -v in a log has no connections: those within the machine never leave by a
// device, so nobody counts them.
func wantWithin(t testing.TB, log string) {
	t.Helper()
	if want := "smcr: 0 connections over SMC-R, 0 over TCP\n"; !strings.Contains(log, want) {
		t.Errorf("want %q:\n%s", want, log)
	}
}

// underAll starts programs under smcr run and keeps them in *all.
func (l *lab) underAll(all *[]*netnstest.Process) func(h *netnstest.Host, argv ...string) *netnstest.Process {
	return func(h *netnstest.Host, argv ...string) *netnstest.Process {
		p := l.under(h, argv...)
		*all = append(*all, p)
		return p
	}
}

// TestWithinNamespace: the socket API of connections within a network namespace is that of
// TCP, in all of it, and the stack has nothing of them.
func TestWithinNamespace(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3")
	tcp := l.sockapi(l.A, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	stack := l.serve(l.A)
	var programs []*netnstest.Process
	sameAnswers(t, tcp, l.sockapi(l.A, "7002", l.underAll(&programs)))
	for _, p := range programs {
		wantWithin(t, p.Log())
	}
	// A server that is not under smcr run, and one that is: connections of neither are in the listing, but as those within the machine.
	bare := l.A.Go(t, bin("probe"), "server", l.A.Addr()+":8")
	if err := bare.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	server := l.probeServer()
	for _, port := range []string{":7", ":8"} {
		client := l.under(l.A, bin("probe"), "client", l.A.Addr()+port, "3")
		if err := client.WaitOutput("holding 3 connections\n", startTime); err != nil {
			t.Fatal(err)
		}
		rows, err := l.rows(l.A, "connection")
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if within := row["mode"] == "TCP" && fmt.Sprint(row["fallback"].(map[string]any)["reason"]) == "0x03fa0000"; row["state"] != "LISTEN" && !within {
				t.Errorf("listed: %v", row)
			}
		}
		release(t, client)
		wantWithin(t, client.Log())
	}
	terminate(t, server)
	wantWithin(t, server.Log())
	terminate(t, bare)
	terminate(t, stack)
}

// ownChanges connects to addresses that appear, vanish, and lead elsewhere while it runs.
const ownChanges = `
import socket, subprocess, sys
own, peer, dev = sys.argv[1:]
def ip(*args): subprocess.run(('ip',) + args, check=True)
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(('0.0.0.0', 7100)); l.listen()
l6 = socket.socket(socket.AF_INET6); l6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); l6.bind(('::', 7100)); l6.listen()
def talk(to, l, scope=None):
    c = socket.socket(l.family); c.settimeout(10)
    c.connect((to, 7100) if scope is None else (to, 7100, 0, scope))
    s = l.accept()[0]
    c.sendall(b'x' * 100000); n = 0
    while n < 100000: n += len(s.recv(65536))
    c.close(); print(to, n == 100000 and s.recv(1) == b''); s.close()
talk(own, l)
ip('addr', 'add', '198.51.100.77/32', 'dev', dev)
talk('198.51.100.77', l)
ip('addr', 'del', '198.51.100.77/32', 'dev', dev)
try: socket.create_connection(('198.51.100.77', 7100), 1)
except OSError: print('gone')
ip('addr', 'add', '198.51.100.77/32', 'dev', dev)
talk('198.51.100.77', l)
for line in subprocess.run(('ip', '-o', '-6', 'addr', 'show', 'dev', dev, 'scope', 'link'), capture_output=True, text=True).stdout.splitlines():
    talk(line.split()[3].split('/')[0], l6, socket.if_nametoindex(dev))
    break
# A rule that leads an own address to another host.
subprocess.run(('nft', 'add table ip smcrtest; add chain ip smcrtest out { type nat hook output priority -100; }; add rule ip smcrtest out ip daddr 198.51.100.77 tcp dport 7200 dnat to %s:7' % peer), check=True)
c = socket.create_connection(('198.51.100.77', 7200), 10, (own, 0)); print(c.getpeername()[0]); c.close()
`

// TestOwnAddressChanges: a program under smcr run connects to addresses of its namespace that
// are added and removed meanwhile, to a link-local one, and to one that a rule leads to
// another host.
func TestOwnAddressChanges(t *testing.T) {
	l := newLab(t, "python3", "nft")
	l.serve(l.A)
	server := l.B.Go(t, bin("probe"), "server", l.B.Addr()+":7")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	p := l.under(l.A, "python3", "-u", "-c", ownChanges, l.A.Addr(), l.B.Addr(), "eth0")
	if err := p.Wait(time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, p.Log())
	}
	log := p.Log()
	if strings.Count(log, " True\n") != 4 || !strings.Contains(log, "gone\n") || !strings.Contains(log, "\n198.51.100.77\n") || strings.Contains(log, "False") {
		t.Errorf("the program says\n%s", log)
	}
	if !strings.Contains(log, "smcr: 0 connections over SMC-R") {
		t.Errorf("want TCP alone:\n%s", log)
	}
	terminate(t, server)
}

// TestBetweenNamespaces: connections between two network namespaces of a machine, with a stack
// each, are TCP in all of it. With --no-local on one side they use SMC-R.
func TestBetweenNamespaces(t *testing.T) {
	t.Parallel()
	l := newContainers(t, "python3")
	tcp := l.sockapi(l.B, "7001", func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, argv[0], argv[1:]...)
	})
	for _, tt := range []struct {
		name  string
		flags [2][]string
		local bool
	}{
		{"default", [2][]string{}, true},
		{"--no-local at the server", [2][]string{{"--no-local"}, nil}, false},
		{"--no-local at the client", [2][]string{nil, {"--no-local"}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			a, b := l.serve(l.A, tt.flags[0]...), l.serve(l.B, tt.flags[1]...)
			server := l.probeServer()
			for _, conns := range []int{1, 3} {
				client := l.held(conns)
				release(t, client)
				if tt.local {
					if want := fmt.Sprintf("smcr: 0 connections over SMC-R, 0 over TCP, %d local\n", conns); !strings.Contains(client.Log(), want) {
						t.Errorf("want %q:\n%s", want, client.Log())
					}
				} else {
					wantSummary(t, client.Log(), conns)
				}
			}
			if tt.local {
				var programs []*netnstest.Process
				sameAnswers(t, tcp, l.sockapi(l.B, "7002", l.underAll(&programs)))
				for _, p := range programs {
					if strings.Contains(p.Log(), "late") || !strings.Contains(p.Log(), "smcr: 0 connections over SMC-R") {
						t.Errorf("want TCP alone:\n%s", p.Log())
					}
				}
			}
			terminate(t, server)
			terminate(t, a)
			terminate(t, b)
		})
	}
}

// TestAddressesPublished: the file of a stack has the addresses of its namespace, follows their
// changes, and goes with the stack.
func TestAddressesPublished(t *testing.T) {
	l := newContainers(t)
	stack := l.serve(l.A)
	file := filepath.Join(l.dirOf(l.A), "addresses")
	has := func(addr string, want bool) {
		t.Helper()
		if err := netnstest.Until(settleTime, func() error {
			b, err := os.ReadFile(file)
			if err != nil {
				return netnstest.Stop(err)
			}
			if strings.Contains(string(b), "\n"+addr+"\n") != want {
				return fmt.Errorf("%s: want %v:\n%s", addr, want, b)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	has(l.A.Addr(), true)
	has(l.A.Addr6(), true)
	has("127.0.0.1", false)
	for _, verb := range []string{"add", "del"} {
		if _, err := l.A.Output(t.Context(), "ip", "addr", verb, "198.51.100.78/32", "dev", "eth0"); err != nil {
			t.Fatal(err)
		}
		has("198.51.100.78", verb == "add")
	}
	terminate(t, stack)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("after the end of the stack: %v", err)
	}
}
