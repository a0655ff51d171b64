// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"os"
	"testing"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

func TestLocalJoinMatches(t *testing.T) {
	ten := netip.MustParsePrefix("10.0.0.0/8")
	for _, tt := range []struct {
		entry   LocalJoin
		program string
		server  string
		want    bool
	}{
		{LocalJoin{Program: "redis-server"}, "redis-server", "10.0.0.1:1", true},
		{LocalJoin{Program: "redis-server"}, "redis-serve", "10.0.0.1:1", false},
		{LocalJoin{Program: "redis-server"}, "redis-server2", "10.0.0.1:1", false},
		{LocalJoin{Port: 6379}, "any", "10.0.0.1:6379", true},
		{LocalJoin{Port: 6379}, "any", "10.0.0.1:6380", false},
		{LocalJoin{Prefix: ten}, "any", "10.255.0.1:1", true},
		{LocalJoin{Prefix: ten}, "any", "[::ffff:10.255.0.1]:1", true},
		{LocalJoin{Prefix: ten}, "any", "11.0.0.1:1", false},
		{LocalJoin{Prefix: ten}, "any", "[fd00::1]:1", false},
		{LocalJoin{Prefix: netip.MustParsePrefix("fe80::/10")}, "any", "[fe80::1%eth0]:1", true},
		{LocalJoin{"redis-server", 6379, ten}, "redis-server", "10.0.0.1:6379", true},
		{LocalJoin{"redis-server", 6379, ten}, "other", "10.0.0.1:6379", false},
		{LocalJoin{"redis-server", 6379, ten}, "redis-server", "10.0.0.1:6378", false},
		{LocalJoin{"redis-server", 6379, ten}, "redis-server", "12.0.0.1:6379", false},
	} {
		if got := tt.entry.matches(tt.program, netip.MustParseAddrPort(tt.server)); got != tt.want {
			t.Errorf("%+v, %s to %s: %v", tt.entry, tt.program, tt.server, got)
		}
	}
}

// TestLocalPolicy: which programs are joined although no launcher chose it, by what the policy
// names.
func TestLocalPolicy(t *testing.T) {
	loop, ten := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")
	for name, tt := range map[string]struct {
		policy         func(port uint16) []LocalJoin
		client, server bool // whether they are joined
	}{
		"none":            {func(uint16) []LocalJoin { return nil }, false, false},
		"both programs":   {func(uint16) []LocalJoin { return []LocalJoin{{Program: "client"}, {Program: "server"}} }, true, true},
		"other programs":  {func(uint16) []LocalJoin { return []LocalJoin{{Program: "clien"}, {Program: "servers"}} }, false, false},
		"only the server": {func(uint16) []LocalJoin { return []LocalJoin{{Program: "server"}} }, false, false},
		"only the client": {func(uint16) []LocalJoin { return []LocalJoin{{Program: "client"}} }, false, false},
		"the port":        {func(port uint16) []LocalJoin { return []LocalJoin{{Port: port}} }, true, true},
		"another port":    {func(port uint16) []LocalJoin { return []LocalJoin{{Port: port ^ 1}} }, false, false},
		"the prefix":      {func(uint16) []LocalJoin { return []LocalJoin{{Prefix: loop}} }, true, true},
		"another prefix":  {func(uint16) []LocalJoin { return []LocalJoin{{Prefix: ten}} }, false, false},
		"all three": {func(port uint16) []LocalJoin {
			return []LocalJoin{{"server", port, loop}, {"client", port, loop}}
		}, true, true},
		"the server by another prefix": {func(port uint16) []LocalJoin {
			return []LocalJoin{{"server", port, ten}, {"client", port, loop}}
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			b.local = false
			b.s.local.mu.Lock()
			b.s.local.ports = localPorts{} // of the launcher of the bed, which chose it
			b.s.local.mu.Unlock()
			b.s.SetLocalJoin(tt.policy(b.addr.Port()))
			b.command = "/usr/bin/server -p 1"
			server := b.launcher(os.Geteuid())
			if err := server.Listen(t.Context(), b.listener); err != nil {
				t.Fatal(err)
			}
			b.command = "client"
			cc, _, ev := b.connect(b.launcher(os.Geteuid()))
			if joined := ev.Kind != broker.EventNotCandidate; joined != tt.client {
				t.Fatalf("event %+v, joined: want %t", ev, tt.client)
			}
			if !tt.client {
				return
			}
			p := b.end(ev)
			if err := cc.Proceed(); err != nil {
				t.Fatal(err)
			}
			sock := b.accept()
			sc := b.handOver(server, sock)
			if tt.server {
				exchange(t, p, b.end(next(t, sc, broker.EventLocal)))
				return
			}
			next(t, sc, broker.EventNotCandidate)
			q, err := fileConn(sock)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			exchange(t, p, q)
		})
	}
}

// TestLocalPolicyOfLauncher: which launchers learn that the stack joins programs, also after
// the policy has changed, and that the choice of a launcher needs no policy.
func TestLocalPolicyOfLauncher(t *testing.T) {
	testkind.System(t)
	b := newLocalBed(t)
	b.local = false
	local := func(command string) bool {
		b.command = command
		return b.launcher(os.Geteuid()).Local()
	}
	b.s.SetLocalJoin([]LocalJoin{{Program: "redis-server", Port: 1}})
	if !local("/opt/redis-server x") || local("nginx") {
		t.Error("not as the program says")
	}
	b.s.SetLocalJoin([]LocalJoin{{Port: 1}})
	if !local("nginx") {
		t.Error("an entry without a program does not hold for all")
	}
	b.s.SetLocalJoin(nil)
	if local("nginx") {
		t.Error("an entry that is gone holds")
	}
	b.local = true
	if !local("nginx") {
		t.Error("a launcher that chose it is not joined")
	}
	none := &Service{cfg: Config{NoLocal: true}}
	if none.mayJoin(&broker.Launcher{Chosen: true}) {
		t.Error("joined despite NoLocal")
	}
}
