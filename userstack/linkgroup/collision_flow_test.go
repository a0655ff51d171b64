// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"testing"
	"time"

	"smcr/smc"
)

// crossing lets two messages cross: a is sent, then b before a arrives.
func crossing(t *testing.T, a, b happening) *sim {
	s := newSim(t, 1)
	edit := func(c *Config) { links(4)(c); c.RMBEsPerRMB = 1; c.Timers.RMBIdle = time.Hour }
	s.addHost(smc.Server, 3, edit)
	s.addHost(smc.Client, 4, edit)
	s.record()
	srv, cli := s.connectFirst(0, 4096)
	srv.manual, cli.manual = true, true
	s.run(10*time.Millisecond, func() bool { return len(s.queue) == 0 })
	s.group(smc.Server).links.devices = append(s.group(smc.Server).links.devices, device(smc.Server, 3))
	s.trace = nil
	for _, x := range []happening{a, b} {
		x.do(s.hosts[x.who])
		s.hosts[x.who].drain()
	}
	s.run(2*time.Second, func() bool { return false })
	return s
}

// TestCollisionFlows has the collisions of RFC 7609, section 3.5.5.3, each in
// both orders: TEST LINK is answered at once, the client's ADD LINK is ignored
// during ADD LINK and else acted on afterwards, DELETE LINK of one link waits,
// that of all ends everything at once, the client's CONFIRM RKEY is refused
// during a link exchange and told again with the links of then, and RMBs of both
// sides do not collide.
func TestCollisionFlows(t *testing.T) {
	tests := []struct{ first, second, flow string }{
		// 3.5.5.3.1, ADD LINK.
		{"s ADD LINK", "c TEST LINK", `s2:add-link c1:test-link c2:re:add-link s1:re:test-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"c TEST LINK", "s ADD LINK", `c1:test-link s2:add-link s1:re:test-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"s ADD LINK", "s TEST LINK", `s2:add-link s1:test-link c2:re:add-link c1:re:test-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"s TEST LINK", "s ADD LINK", `s1:test-link s2:add-link c1:re:test-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"s ADD LINK", "c ADD LINK", `s2:add-link c1:add-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"c ADD LINK", "s ADD LINK", `c1:add-link s2:add-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"s ADD LINK", "c DELETE LINK 3 orderly", `s2:add-link c2:delete-link(3) c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1)
			s4:confirm-link c4:re:confirm-link s2:delete-link(3) c2:re:delete-link(3) s2:add-link c2:re:add-link-rejected1`},
		{"c DELETE LINK 3 orderly", "s ADD LINK", `c2:delete-link(3) s2:add-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1)
			s4:confirm-link c4:re:confirm-link s2:delete-link(3) c2:re:delete-link(3) s2:add-link c2:re:add-link-rejected1`},
		{"s ADD LINK", "c DELETE LINK 1 disorderly", `s2:add-link c3:delete-link(1) c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1)
			s4:confirm-link c4:re:confirm-link s3:delete-link(1) c3:re:delete-link(1) s3:add-link c3:re:add-link s3:add-link-continuation(1) c3:re:add-link-continuation(1) s5:confirm-link c5:re:confirm-link`},
		{"c DELETE LINK 1 disorderly", "s ADD LINK", `c3:delete-link(1) s2:add-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1)
			s4:confirm-link c4:re:confirm-link s3:delete-link(1) c3:re:delete-link(1) s3:add-link c3:re:add-link s3:add-link-continuation(1) c3:re:add-link-continuation(1) s5:confirm-link c5:re:confirm-link`},
		{"s ADD LINK", "c DELETE LINK all", `s2:add-link c1:delete-link-all s1:delete-link-all`},
		{"c DELETE LINK all", "s ADD LINK", `c1:delete-link-all s2:add-link s1:delete-link-all`},
		{"s ADD LINK", "c CONFIRM RKEY", `s2:add-link c2:confirm-rkey(2) c2:re:add-link s2:re:confirm-rkey(2)-negative-retry s2:add-link-continuation(1)
			c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link c2:confirm-rkey(3) s2:re:confirm-rkey(3)
			c2:confirm-rkey-continuation(1) s2:re:confirm-rkey-continuation(1)`},
		{"c CONFIRM RKEY", "s ADD LINK", `c2:confirm-rkey(2) s2:add-link s2:re:confirm-rkey(2)-negative-retry c2:re:add-link s2:add-link-continuation(1)
			c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link c2:confirm-rkey(3) s2:re:confirm-rkey(3)
			c2:confirm-rkey-continuation(1) s2:re:confirm-rkey-continuation(1)`},
		// 3.5.5.3.2, DELETE LINK.
		{"s DELETE LINK 3 orderly", "c TEST LINK", `s2:delete-link(3) c1:test-link c2:re:delete-link(3) s1:re:test-link`},
		{"c TEST LINK", "s DELETE LINK 3 orderly", `c1:test-link s2:delete-link(3) s1:re:test-link c2:re:delete-link(3)`},
		{"s DELETE LINK 3 orderly", "s TEST LINK", `s2:delete-link(3) s1:test-link c2:re:delete-link(3) c1:re:test-link`},
		{"s TEST LINK", "s DELETE LINK 3 orderly", `s1:test-link s2:delete-link(3) c1:re:test-link c2:re:delete-link(3)`},
		{"s DELETE LINK 3 orderly", "c ADD LINK", `s2:delete-link(3) c1:add-link c2:re:delete-link(3) s2:add-link c2:re:add-link s2:add-link-continuation(1)
			c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"c ADD LINK", "s DELETE LINK 3 orderly", `c1:add-link s2:delete-link(3) c2:re:delete-link(3) s2:add-link c2:re:add-link s2:add-link-continuation(1)
			c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"s DELETE LINK 3 orderly", "c DELETE LINK 1 disorderly", `s2:delete-link(3) c3:delete-link(1) c2:re:delete-link(3) s2:delete-link(1) c2:re:delete-link(1)`},
		{"c DELETE LINK 1 disorderly", "s DELETE LINK 3 orderly", `c3:delete-link(1) s2:delete-link(3) c2:re:delete-link(3) s2:delete-link(1) c2:re:delete-link(1)`},
		{"s DELETE LINK 3 orderly", "c DELETE LINK all", `s2:delete-link(3) c1:delete-link-all s1:delete-link-all`},
		{"c DELETE LINK all", "s DELETE LINK 3 orderly", `c1:delete-link-all s2:delete-link(3) s1:delete-link-all`},
		{"s DELETE LINK 3 orderly", "s DELETE LINK all", `s2:delete-link(3) s1:delete-link-all`},
		{"s DELETE LINK all", "s DELETE LINK 3 orderly", `s1:delete-link-all`},
		{"s DELETE LINK 3 orderly", "c CONFIRM RKEY", `s2:delete-link(3) c2:confirm-rkey(2) c2:re:delete-link(3) s2:re:confirm-rkey(2)-negative-retry c2:confirm-rkey(1) s2:re:confirm-rkey(1)`},
		{"c CONFIRM RKEY", "s DELETE LINK 3 orderly", `c2:confirm-rkey(2) s2:delete-link(3) s2:re:confirm-rkey(2)-negative-retry c2:re:delete-link(3) c2:confirm-rkey(1) s2:re:confirm-rkey(1)`},
		// 3.5.5.3.3, CONFIRM RKEY.
		{"s CONFIRM RKEY", "c TEST LINK", `s2:confirm-rkey(2) c1:test-link c2:re:confirm-rkey(2) s1:re:test-link`},
		{"c TEST LINK", "s CONFIRM RKEY", `c1:test-link s2:confirm-rkey(2) s1:re:test-link c2:re:confirm-rkey(2)`},
		{"c CONFIRM RKEY", "s TEST LINK", `c2:confirm-rkey(2) s1:test-link s2:re:confirm-rkey(2) c1:re:test-link`},
		{"s TEST LINK", "c CONFIRM RKEY", `s1:test-link c2:confirm-rkey(2) c1:re:test-link s2:re:confirm-rkey(2)`},
		{"s CONFIRM RKEY", "c ADD LINK", `s2:confirm-rkey(2) c1:add-link c2:re:confirm-rkey(2) s3:add-link c3:re:add-link s3:add-link-continuation(2)
			c3:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"c ADD LINK", "s CONFIRM RKEY", `c1:add-link s2:confirm-rkey(2) c2:re:confirm-rkey(2) s3:add-link c3:re:add-link s3:add-link-continuation(2)
			c3:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link`},
		{"c CONFIRM RKEY", "s ADD LINK", `c2:confirm-rkey(2) s2:add-link s2:re:confirm-rkey(2)-negative-retry c2:re:add-link s2:add-link-continuation(1)
			c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link c2:confirm-rkey(3) s2:re:confirm-rkey(3)
			c2:confirm-rkey-continuation(1) s2:re:confirm-rkey-continuation(1)`},
		{"s ADD LINK", "c CONFIRM RKEY", `s2:add-link c2:confirm-rkey(2) c2:re:add-link s2:re:confirm-rkey(2)-negative-retry s2:add-link-continuation(1)
			c2:re:add-link-continuation(1) s4:confirm-link c4:re:confirm-link c2:confirm-rkey(3) s2:re:confirm-rkey(3)
			c2:confirm-rkey-continuation(1) s2:re:confirm-rkey-continuation(1)`},
		{"s CONFIRM RKEY", "c DELETE LINK 3 orderly", `s2:confirm-rkey(2) c2:delete-link(3) c2:re:confirm-rkey(2) s1:delete-link(3) c1:re:delete-link(3)`},
		{"c DELETE LINK 3 orderly", "s CONFIRM RKEY", `c2:delete-link(3) s2:confirm-rkey(2) c2:re:confirm-rkey(2) s1:delete-link(3) c1:re:delete-link(3)`},
		{"s CONFIRM RKEY", "c DELETE LINK 1 disorderly", `s2:confirm-rkey(2) c3:delete-link(1) c2:re:confirm-rkey(2) s2:delete-link(1) c2:re:delete-link(1)`},
		{"c DELETE LINK 1 disorderly", "s CONFIRM RKEY", `c3:delete-link(1) s2:confirm-rkey(2) c2:re:confirm-rkey(2) s2:delete-link(1) c2:re:delete-link(1)`},
		{"c CONFIRM RKEY", "s DELETE LINK 3 orderly", `c2:confirm-rkey(2) s2:delete-link(3) s2:re:confirm-rkey(2)-negative-retry c2:re:delete-link(3) c2:confirm-rkey(1) s2:re:confirm-rkey(1)`},
		{"s DELETE LINK 3 orderly", "c CONFIRM RKEY", `s2:delete-link(3) c2:confirm-rkey(2) c2:re:delete-link(3) s2:re:confirm-rkey(2)-negative-retry c2:confirm-rkey(1) s2:re:confirm-rkey(1)`},
		{"s CONFIRM RKEY", "c DELETE LINK all", `s2:confirm-rkey(2) c1:delete-link-all s1:delete-link-all`},
		{"c DELETE LINK all", "s CONFIRM RKEY", `c1:delete-link-all s2:confirm-rkey(2) s1:delete-link-all`},
		{"c CONFIRM RKEY", "s DELETE LINK all", `c2:confirm-rkey(2) s1:delete-link-all`},
		{"s DELETE LINK all", "c CONFIRM RKEY", `s1:delete-link-all c2:confirm-rkey(2)`},
		{"s CONFIRM RKEY", "c CONFIRM RKEY", `s2:confirm-rkey(2) c2:confirm-rkey(2) c2:re:confirm-rkey(2) s2:re:confirm-rkey(2)`},
		{"c CONFIRM RKEY", "s CONFIRM RKEY", `c2:confirm-rkey(2) s2:confirm-rkey(2) s2:re:confirm-rkey(2) c2:re:confirm-rkey(2)`},
	}
	byName := map[string]happening{}
	for _, h := range happenings() {
		byName[h.who.String()[:1]+" "+h.name] = h
	}
	for _, tt := range tests {
		t.Run(tt.first+"/"+tt.second, func(t *testing.T) {
			s := crossing(t, byName[tt.first], byName[tt.second])
			s.flow(tt.flow)
			if !s.hosts[0].gone {
				s.agree()
			}
			s.finish()
		})
	}
}
