// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"testing"
	"time"

	"smcr/smc"
)

// TestDeleteLostLink: a client whose requests are outstanding on a link that the
// server has lost learns of that by DELETE LINK. It waits for no completion,
// which would come only when retries are exceeded: data and the answer go over
// the other link at once, and a link for the device that returns is not late.
func TestDeleteLostLink(t *testing.T) {
	s := newSim(t, 1)
	s.addHost(smc.Server, 2, noTest)
	s.addHost(smc.Client, 2, noTest)
	s.record()
	srv, cli := s.connectFirst(0, 4096)
	srv.manual, cli.manual = true, true
	s.runUntilIdle()

	lost := cli.c.link
	q := lost.Data.(*qp)
	q.broken = true // nothing is confirmed any more, and retries go on
	cli.total, cli.chunk = 3000, 3000
	if n := cli.writeSome(3000); n != 3000 || cli.c.Positions().Outstanding == 0 {
		t.Fatalf("%d bytes written, %d messages outstanding", n, cli.c.Positions().Outstanding)
	}
	cli.h.drain()
	s.trace = nil
	s.group(smc.Server).DeviceDown(s.now, lost.dev.ID)
	srv.h.drain()
	s.pass(10 * time.Millisecond)
	if cli.c.link == lost || cli.c.Positions().Outstanding != 0 {
		t.Errorf("the connection is on link %d with %d messages outstanding", cli.c.link.id, cli.c.Positions().Outstanding)
	}
	if n := srv.readSome(4096); n != 3000 {
		t.Errorf("the server reads %d bytes, want 3000", n)
	}
	if !slices.Contains(s.trace, "c2:re:delete-link(1)") {
		t.Errorf("no answer to DELETE LINK: %v", s.trace)
	}
	s.group(smc.Server).DeviceUp(s.now, device(smc.Server, lost.dev.ID))
	srv.h.drain()
	s.pass(10 * time.Millisecond)
	for _, h := range s.hosts {
		if h.g.Type() != smc.GroupSymmetric {
			t.Errorf("%s: the group is %s: %v", h.role, h.g.Type(), s.trace)
		}
	}
	s.finish()
}
