// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestAbruptDelete: a link with a Linux peer is closed before the peer learns that it is
// deleted, so that nothing that Linux writes on it completes after it has moved its connections.
// The connections of this side move without loss of data. A peer that is not Linux can finish
// on the link.
func TestAbruptDelete(t *testing.T) {
	for _, tt := range []struct {
		name   string
		role   smc.Role
		edit   func(*Config)
		abrupt bool
	}{
		{"Linux is the client", smc.Server, linux, true},
		{"Linux is the server", smc.Client, linux, true},
		{"unknown client", smc.Server, func(c *Config) { c.PeerOS = 0 }, true},
		{"unknown server", smc.Client, func(c *Config) { c.PeerOS = 0 }, true},
		{"z/OS is the client", smc.Server, func(c *Config) { c.PeerOS = smc.OSZOS }, false},
		{"z/OS is the server", smc.Client, func(c *Config) { c.PeerOS = smc.OSZOS }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t, 1)
			edit := func(c *Config) { noTest(c); tt.edit(c) }
			s.addHost(smc.Server, 2, edit)
			s.addHost(smc.Client, 2, edit)
			srv, cli := s.connectFirst(0, 4096)
			srv.manual, cli.manual = true, true
			s.runUntilIdle()
			a := srv
			if tt.role == smc.Client {
				a = cli
			}
			l := a.c.link
			a.total, a.chunk = 3000, 3000
			if n := a.writeSome(3000); n != 3000 {
				t.Fatalf("%d bytes written", n)
			}
			told := false
			s.tap = func(from *host, _ *Link, msg []byte) {
				if d := describe(msg); from.role != tt.role || d != fmt.Sprintf("delete-link(%d)", l.id) {
					return
				}
				told = true
				if l.qpOpen == tt.abrupt {
					t.Errorf("the queue pair is open: %v", l.qpOpen)
				}
			}
			s.group(tt.role).DeleteLink(s.now, l, wire.DeleteLinkOperator)
			a.h.drain()
			s.runUntilIdle()
			other := srv
			if a == srv {
				other = cli
			}
			if n := other.readSome(4096); n != 3000 || !told || a.c.link == l {
				t.Errorf("the peer reads %d bytes, was told %v; on the deleted link: %v", n, told, a.c.link == l)
			}
			if got := s.types(); got != "SINGLE/SINGLE" {
				t.Errorf("types %s", got)
			}
			s.finish()
		})
	}
}
