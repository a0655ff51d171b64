// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// replay has a group in the place of one of the two kernels of a capture. It is
// fed with what the other kernel sent; its applications do what those of the
// capture must have done to make their kernel say what it said. What it says
// then must be what the kernel said.
type replay struct {
	*capPlan
	role    smc.Role
	capture []capMessage
	now     time.Time
	g       *Group
	byPort  map[uint16]*replayConn
	out     []replayed   // not yet found in the capture
	later   []capMessage // of the other kernel, not fed yet
	writes  []capWrite   // since the last message
	theirs  []capWrite   // likewise, of the kernel
	outcome
}

// Where a group says something else than Linux, on purpose. The rows are in
// docs/interop.md.
const (
	endTwice   = "Linux tells the end of a link group twice"
	disorderly = "a Linux client that ends a link group does not call that orderly"
	ownTarget  = "ADD LINK of version 2 names the peer's GID as its target, Linux names its own"
	justFull   = "Linux says that it is blocked when the RMBE is full; here only when data waits besides"
	readsOn    = "Linux lets the application read on after a reset; RFC 7609, section 4.8.2, purges"
)

// replayed is a message of the group, with the writes before it.
type replayed struct {
	link   *Link
	msg    []byte
	writes []capWrite
}

type replayConn struct {
	*capConn
	c             *Conn
	ready         bool
	kernel, group course
}

func newReplay(t *testing.T, role smc.Role, captures ...string) *replay {
	t.Helper()
	capture := readCaptures(t, captures...)
	r := &replay{
		capPlan: newPlan(t, role, capture), role: role, capture: capture, now: epoch,
		byPort: map[uint16]*replayConn{}, outcome: outcome{known: known{}},
	}
	// One element an RMB, which is given up when its connection is over.
	timers := DefaultTimers(role)
	timers.RMBIdle = time.Millisecond
	timers.AddLinkRetry, timers.DeleteLinkPause = 0, 0
	r.g = New(Config{
		Role: role, Version: r.version, PeerOS: r.peerOS, ID: r.groupID(), Devices: r.devices,
		RMBEsPerRMB: 1, Timers: timers,
	}, r, r.now)
	return r
}

// groupID is what Linux's link user ids, which count from it, show.
func (r *replay) groupID() (id [4]byte) {
	for _, m := range r.capture {
		if x, err := wire.ParseConfirmLink(m.msg); err == nil && m.server == (r.role == smc.Server) {
			n := x.LinkUserID - uint32(x.LinkNum)
			return [4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
		}
	}
	return id
}

// run replays the capture.
func (r *replay) run() {
	if !slices.ContainsFunc(r.order, func(port uint16) bool { return r.conns[port].first }) {
		r.preface()
	}
	for _, m := range r.capture {
		r.now = r.now.Add(time.Microsecond)
		own := m.server == (r.role == smc.Server)
		switch {
		case m.clc != nil:
			r.feedUntil(nil)
			r.clc(m)
		case own && m.write.size > 0:
			r.theirs = append(r.theirs, m.write)
		case own:
			r.expect(m)
		case m.msg != nil:
			r.later = append(r.later, m)
		}
		if r.t.Failed() {
			return
		}
	}
	r.feedUntil(nil)
	r.same()
}

// preface makes the link group where the capture has not got its beginning.
func (r *replay) preface() {
	c := r.conns[r.order[0]]
	r.newRMB = &capRMB{at: map[uint8]smc.RToken{1: {RKey: 1, Addr: 1}}}
	r.token = 1
	if _, err := r.g.FirstLink(r.now); err != nil {
		r.t.Fatal(err)
	}
	first, err := r.g.NewConn(r.now, 0, 4096)
	if err != nil {
		r.t.Fatal(err)
	}
	peer := c.of(1 - r.role)
	if err := r.g.ConnectFirst(r.now, ConnParams{Link: endOf(peer)}); err != nil {
		r.t.Fatal(err)
	}
	r.drain()
	l := r.g.links.list[0]
	say := func(m wire.LLC) {
		b, err := wire.AppendLLC(nil, r.g.llc.layout, m)
		if err != nil {
			r.t.Fatal(err)
		}
		r.g.Received(r.now, l, b)
		r.drain()
	}
	say(wire.ConfirmLink{
		Reply: r.role == smc.Server, NoEyecatcher: true, MAC: peer.MAC, GID: peer.GID, QPN: peer.QPN,
		LinkNum: 1, LinkUserID: 1, MaxLinks: 2, MaxConns: 255,
	})
	if r.role == smc.Server {
		say(wire.AddLink{Reply: true, Rejected: true, LinkNum: 2})
	} else {
		say(wire.AddLink{LinkNum: 2, MAC: peer.MAC, GID: peer.GID, QPN: peer.QPN + 1, MTU: 3})
	}
	first.Cancel(r.now)
	r.now = r.now.Add(time.Second)
	r.g.Tick(r.now)
	r.drain()
	if r.g.phase != phaseOpen {
		r.t.Fatal("no link group")
	}
	say(wire.DeleteRKeyV2{Reply: true, Count: 1})
	r.out = nil
}

// clc goes on with the rendezvous of a connection as package userstack does.
func (r *replay) clc(m capMessage) {
	t := m.clc.CLCType()
	c := r.byPort[m.port]
	if c == nil {
		c = &replayConn{capConn: r.conns[m.port]}
		r.byPort[m.port] = c
	}
	switch {
	case t == wire.TypeProposal && r.role == smc.Server, t == wire.TypeAccept && r.role == smc.Client:
		r.begin(m, c)
	}
	switch {
	case t == wire.TypeConfirm && r.role == smc.Server && c.first, t == wire.TypeAccept && c.first && r.role == smc.Client:
		if err := r.g.ConnectFirst(r.now, peerParams(c.of(1-r.role))); err != nil {
			r.t.Errorf("%s: %v", m.where, err)
		}
		r.drain()
	}
	own := t == wire.TypeAccept && r.role == smc.Server || t == wire.TypeConfirm && r.role == smc.Client
	if own || t == wire.TypeConfirm {
		if !c.ready {
			r.t.Errorf("%s: the connection is not ready", m.where)
			return
		}
	}
	if t == wire.TypeConfirm && !c.first {
		// The kernel's link counts.
		if err := c.c.Attach(r.now, peerParams(c.of(1-r.role))); err != nil {
			r.t.Errorf("%s: %v", m.where, err)
		}
		r.drain()
	}
	if own {
		want := c.of(r.role)
		p := c.c.Local()
		got := wire.Endpoint{
			PeerID: want.PeerID, GID: p.Link.GID, MAC: p.Link.MAC, QPN: p.Link.QPN, PSN: p.Link.PSN, MTU: p.Link.MTU,
			RMB: smc.RToken{RKey: p.RKey, Addr: p.VAddr}, RMBEIndex: p.Index, AlertToken: p.Token, RMBESize: p.SizeCode,
		}
		if d := cmp.Diff(want, got); d != "" {
			r.t.Errorf("%s: %s, kernel - group +\n%s", m.where, t, d)
		}
		r.said++
	}
}

func peerParams(e wire.Endpoint) ConnParams {
	return ConnParams{
		Link: endOf(e),
		RKey: e.RMB.RKey, VAddr: e.RMB.Addr, Index: e.RMBEIndex, Token: e.AlertToken, SizeCode: e.RMBESize,
	}
}

// begin makes a connection, and the group's first link for the first one.
func (r *replay) begin(m capMessage, c *replayConn) {
	if c.first {
		if _, err := r.g.FirstLink(r.now); err != nil {
			r.t.Fatalf("%s: %v", m.where, err)
		}
	}
	e := c.of(r.role)
	if e.AlertToken == 0 {
		r.t.Fatalf("%s: neither ACCEPT nor CONFIRM follows", m.where)
	}
	r.newRMB, r.token = r.rmb(c.link, e.RMB), e.AlertToken
	var err error
	if c.c, err = r.g.NewConn(r.now, e.RMBESize, 1<<20); err != nil {
		r.t.Fatalf("%s: %v", m.where, err)
	}
	c.c.Data = c
	r.drain()
}

// feedUntil feeds what the other kernel has sent, all of it if enough is nil.
// Linux sends data from a work queue, after it may have received more: a
// message is fed no sooner than what the kernel says shows that it had it.
func (r *replay) feedUntil(enough func() bool) {
	for len(r.later) > 0 && (enough == nil || !enough()) {
		m := r.later[0]
		r.later = r.later[1:]
		r.feed(m)
	}
}

// feed hands a message of the other kernel to the group.
func (r *replay) feed(m capMessage) {
	if r.g.phase == phaseDead {
		return
	}
	for _, l := range r.g.Links() {
		if l.local.GID == m.to.gid && l.local.QPN == m.to.qpn {
			r.g.Received(r.now, l, m.msg)
			r.drain()
			return
		}
	}
	r.t.Errorf("%s: no queue pair %s %d", m.where, m.to.gid, m.to.qpn)
}

// drain carries out actions. What is sent is delivered at once.
func (r *replay) drain() {
	for {
		acts := r.g.TakeActions(nil)
		if len(acts) == 0 {
			return
		}
		for _, a := range acts {
			switch a.Kind {
			case ActWrite:
				r.writes = appendWrite(r.writes, capWrite{a.RemoteAddr, a.RKey, a.Len})
			case ActSend:
				r.out = append(r.out, replayed{a.Link, bytes.Clone(a.Message()), r.writes})
				r.writes = nil
			case ActConnReady:
				if a.Err != nil {
					r.t.Errorf("connection not ready: %v", a.Err)
				}
				if c, ok := a.Conn.Data.(*replayConn); ok {
					c.ready = true
				}
			case ActFirstLink:
				r.firstLink(a.Err)
			case ActConnClosed:
				a.Conn.Release()
			}
			if a.Token != 0 {
				r.g.Sent(r.now, a.Link, a.Token)
			}
		}
	}
}

func (r *replay) firstLink(err error) {
	if err != nil {
		r.t.Errorf("first contact: %v", err)
		return
	}
	for _, c := range r.byPort {
		if c.first {
			if err := c.c.Attach(r.now, peerParams(c.of(1-r.role))); err != nil {
				r.t.Errorf("first contact: %v", err)
			}
		}
	}
}

// appendWrite joins writes of adjacent bytes: where one ends is up to the send
// buffer.
func appendWrite(list []capWrite, w capWrite) []capWrite {
	if n := len(list); n > 0 && list[n-1].rkey == w.rkey && list[n-1].addr+uint64(list[n-1].size) == w.addr {
		list[n-1].size += w.size
		return list
	}
	return append(list, w)
}

// expect finds what the kernel sent among what the group sent, after the
// applications have done what they must have done.
func (r *replay) expect(m capMessage) {
	if wire.IsCDC(m.msg) {
		r.expectCDC(m)
		return
	}
	r.feedUntil(nil)
	want := describe(m.msg)
	i := r.find(m)
	if i < 0 {
		if r.actLLC(m); r.g.phase == phaseDead && want == "delete-link-all" {
			r.known[endTwice]++
			return
		}
		i = r.find(m)
	}
	if i < 0 {
		var have []string
		for _, o := range r.out {
			have = append(have, describe(o.msg))
		}
		r.t.Errorf("%s: the kernel sent %s, the group %q", m.where, want, have)
		return
	}
	o := r.out[i]
	r.out = slices.Delete(r.out, i, i+1)
	r.said++
	switch {
	case bytes.Equal(o.msg, m.msg):
	case anotherTarget(m.msg, o.msg):
		r.known[ownTarget]++
	case want == "delete-link-all" && r.role == smc.Client && bytes.Equal(o.msg[4:], m.msg[4:]):
		r.known[disorderly]++
	default:
		r.t.Errorf("%s: %s\nkernel % x\ngroup  % x", m.where, want, m.msg, o.msg)
	}
}

// anotherTarget says whether two ADD LINK of version 2 differ by the GID alone
// that a server wants to reach.
func anotherTarget(kernel, group []byte) bool {
	k, err1 := wire.ParseAddLink(kernel)
	g, err2 := wire.ParseAddLink(group)
	if err1 != nil || err2 != nil || k.Ext == nil || g.Ext == nil {
		return false
	}
	k.Ext.TargetGID = g.Ext.TargetGID
	return cmp.Equal(k, g)
}

// find looks for a message of that kind to that queue pair.
func (r *replay) find(m capMessage) int {
	return slices.IndexFunc(r.out, func(o replayed) bool {
		if (capEnd{o.link.peer.GID, o.link.peer.QPN}) != m.to {
			return false
		}
		if wire.IsCDC(m.msg) {
			return wire.IsCDC(o.msg) && bytes.Equal(o.msg[4:8], m.msg[4:8])
		}
		return describe(o.msg) == describe(m.msg)
	})
}

// actLLC does what makes the group send a message of its own accord.
func (r *replay) actLLC(m capMessage) {
	x, err := wire.ParseLLC(m.msg)
	if err != nil {
		r.t.Fatalf("%s: %v", m.where, err)
	}
	switch x := x.(type) {
	case wire.DeleteRKey, wire.DeleteRKeyV2:
		r.now = r.now.Add(2 * time.Millisecond)
		r.g.Tick(r.now)
	case wire.DeleteLink:
		if x.All && !x.Reply {
			r.g.Terminate(r.now, x.Reason)
		}
	}
	r.drain()
}

// TestReplay puts a group in the place of the server's and of the client's
// kernel of each capture.
func TestReplay(t *testing.T) {
	for _, tt := range []struct {
		captures       string
		server, client outcome
	}{
		{"iperf3_two_connections-v1.srv", outcome{said: 24, known: known{endTwice: 1}}, outcome{said: 26, known: known{justFull: 2, disorderly: 1}}},
		{"two-rnics-v1.eth0 two-rnics-v1.eth1", outcome{said: 40}, outcome{said: 40}},
		{"a_first_contact_echo.srv", outcome{said: 7, known: known{ownTarget: 1}}, outcome{said: 7}},
		{"a2_second_conn_echo.srv", outcome{said: 7}, outcome{said: 7}},
		{"b_half_close.srv", outcome{said: 12}, outcome{said: 8}},
		{"b2_shut_rd.srv", outcome{said: 11}, outcome{said: 6}},
		{"c_linger0_abort.srv", outcome{said: 6}, outcome{said: 7}},
		{"c2_close_unread.srv", outcome{said: 7, known: known{readsOn: 1}}, outcome{said: 7}},
		{"k_sizes.srv", outcome{said: 24, timing: 2}, outcome{said: 24, timing: 1}},
		{"onesubnet-v2.eth0 onesubnet-v2.eth1", outcome{said: 36, known: known{ownTarget: 1}}, outcome{said: 36, known: known{ownTarget: 1}}},
	} {
		for role, want := range map[smc.Role]outcome{smc.Server: tt.server, smc.Client: tt.client} {
			t.Run(tt.captures+"/"+role.String(), func(t *testing.T) {
				r := newReplay(t, role, strings.Fields(tt.captures)...)
				r.run()
				if d := cmp.Diff(want, r.outcome, cmp.AllowUnexported(outcome{}), cmpopts.EquateEmpty()); d != "" && !t.Failed() {
					t.Errorf("want -, got +\n%s", d)
				}
			})
		}
	}
}

// outcome counts the messages that the kernel and the group both sent, those
// that differ by timing, and the deviations.
type outcome struct {
	said, timing int
	known        known
}

type known map[string]int
