// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// rig is one group whose peer is the test: it looks at every action and
// makes up every message.
type rig struct {
	t     *testing.T
	s     *sim
	h     *host
	g     *Group
	link  *Link
	c     *Conn
	other *Conn    // that step another made
	acts  []Action // since the last look
	tok   map[*Link]uint64
	seq   uint16
	close []error // of ActConnClosed
	dead  []error
	first []error
	last  []byte // message
	most  uint8  // links in CONFIRM LINK of the peer, if more than 2
}

// peerEnd is the peer's end of the first link, peerRMB what CLC says of it.
var (
	peerEnd = Endpoint{GID: smc.GID{15: 9}, MAC: smc.MAC{5: 9}, QPN: 0x900, PSN: 77, MTU: 3}
	peerRMB = ConnParams{Link: peerEnd, RKey: 0xAAAA, VAddr: 0x10000, Index: 2, Token: 0x7777, SizeCode: 0}
)

// peerHost is the address from which the peer made the first contact.
var peerHost = netip.MustParseAddr("10.0.0.9")

func newRig(t *testing.T, role smc.Role, edit func(*Config)) *rig {
	r := &rig{t: t, s: newSim(t, 1), tok: map[*Link]uint64{}}
	r.h = r.s.addHost(role, 1, func(c *Config) {
		c.PeerHost = peerHost
		if edit != nil {
			edit(c)
		}
	})
	r.g = r.h.g
	return r
}

// take collects the actions of the group.
func (r *rig) take() []Action {
	acts := r.g.TakeActions(nil)
	for _, a := range acts {
		switch a.Kind {
		case ActSend, ActWrite:
			if a.Token != 0 {
				r.tok[a.Link] = a.Token
			}
			if a.Kind == ActSend {
				r.last = a.Message()
			}
		case ActConnClosed:
			r.close = append(r.close, a.Err)
		case ActGroupDead:
			r.dead = append(r.dead, a.Err)
		case ActFirstLink:
			r.first = append(r.first, a.Err)
		}
	}
	r.acts = append(r.acts, acts...)
	return acts
}

// sent returns what was sent since the last call, one word a message.
func (r *rig) sent() string {
	r.take()
	var out []string
	for _, a := range r.acts {
		if a.Kind == ActSend {
			out = append(out, describe(a.Message()))
		}
	}
	r.acts = nil
	return strings.Join(out, " ")
}

// describe names a message.
func describe(msg []byte) string {
	if wire.IsCDC(msg) {
		m, _ := wire.ParseCDC(msg)
		s := "cdc"
		for _, f := range []struct {
			on   bool
			name string
		}{
			{m.Flags&wire.ProdFailoverVerify != 0, "F"}, {m.Flags&wire.ProdWriterBlocked != 0, "B"},
			{m.Flags&wire.ProdUrgentPending != 0, "P"}, {m.Flags&wire.ProdUrgentPresent != 0, "U"}, {m.Flags&wire.ProdCursorRequest != 0, "R"},
			{m.State&wire.ConnSendingDone != 0, "D"}, {m.State&wire.ConnClosed != 0, "C"}, {m.State&wire.ConnAbnormalClose != 0, "A"},
		} {
			if f.on {
				s += "+" + f.name
			}
		}
		return s
	}
	m, err := wire.ParseLLC(msg)
	if err != nil {
		return "?"
	}
	s := strings.ToLower(strings.ReplaceAll(m.LLCType().String(), " ", "-"))
	switch m := m.(type) {
	case wire.AddLink:
		if m.Rejected {
			s += fmt.Sprintf("-rejected%d", m.Reason)
		}
	case wire.AddLinkCont:
		s += fmt.Sprintf("(%d)", m.Left)
	case wire.DeleteLink:
		if m.All {
			s += "-all"
		} else {
			s += fmt.Sprintf("(%d)", m.LinkNum)
		}
		if m.Reason == wire.DeleteLinkUnknownLink {
			s += "-unknown"
		}
	case wire.ConfirmRKey:
		s += fmt.Sprintf("(%d)", m.Others)
		if m.Negative {
			s += "-negative"
		}
		if m.Retry {
			s += "-retry"
		}
	case wire.ConfirmRKeyCont:
		s += fmt.Sprintf("(%d)", m.Left)
		if m.Negative {
			s += "-negative"
		}
	case wire.DeleteRKey:
		s += fmt.Sprintf("(%d)", m.Count)
		if m.Negative {
			s += fmt.Sprintf("-negative%02x", m.ErrorMask)
		}
	}
	if m.IsReply() {
		return "re:" + s
	}
	return s
}

// done completes everything that was posted.
func (r *rig) done() {
	for range 10 {
		r.take()
		for _, l := range r.g.Links() {
			if t := r.tok[l]; t != 0 {
				delete(r.tok, l)
				r.g.Sent(r.s.now, l, t)
			}
		}
	}
	r.take()
}

func (r *rig) recv(l *Link, m encoding.BinaryAppender) {
	r.t.Helper()
	b, err := m.AppendBinary(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.g.Received(r.s.now, l, b)
	r.take()
}

// wait lets fake time pass.
func (r *rig) wait(d time.Duration) {
	end := r.s.now.Add(d)
	for {
		at, ok := r.g.Deadline()
		if !ok || at.After(end) {
			break
		}
		r.s.now = at
		r.g.Tick(r.s.now)
		r.take()
	}
	r.s.now = end
}

func (r *rig) confirmLink(reply bool, l *Link) wire.ConfirmLink {
	return wire.ConfirmLink{
		Reply: reply, NoEyecatcher: true, MAC: l.peer.MAC, GID: l.peer.GID, QPN: l.peer.QPN,
		LinkNum: max(1, l.id), LinkUserID: 0x55, MaxLinks: max(2, r.most),
	}
}

// begin goes as far as ConnectFirst.
func (r *rig) begin() { r.t.Helper(); r.beginWith(peerRMB) }

// beginWith is begin with the CLC message of another peer.
func (r *rig) beginWith(peer ConnParams) {
	r.t.Helper()
	if _, err := r.g.FirstLink(r.s.now); err != nil {
		r.t.Fatal(err)
	}
	r.link = r.g.links.list[0]
	var err error
	if r.c, err = r.g.NewConn(r.s.now, 0, 4096); err != nil {
		r.t.Fatal(err)
	}
	if err := r.g.ConnectFirst(r.s.now, peer); err != nil {
		r.t.Fatal(err)
	}
}

// open runs the first contact with a single link and attaches the
// connection.
func (r *rig) open() {
	r.t.Helper()
	r.begin()
	if r.g.cfg.Role == smc.Server {
		r.recv(r.link, r.confirmLink(true, r.link))
		r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
	} else {
		r.recv(r.link, r.confirmLink(false, r.link))
		r.recv(r.link, wire.AddLink{LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 3})
	}
	r.done()
	if err := errors.Join(r.first...); err != nil || len(r.first) != 1 {
		r.t.Fatalf("first contact: %d outcomes, %v", len(r.first), err)
	}
	if err := r.c.Attach(r.s.now, peerRMB); err != nil {
		r.t.Fatal(err)
	}
	r.acts = nil
}

// cdc makes a message of the peer that changes nothing but flags.
func (r *rig) cdc() wire.CDC {
	r.seq++
	return wire.CDC{Seq: r.seq, Token: r.c.Token(), Prod: r.c.ours().cursor(r.c.Positions().Received), Cons: r.c.theirs().cursor(r.c.Positions().PeerRead)}
}

// give has the peer write n bytes and announce them.
func (r *rig) give(n int, flags wire.ProducerFlags) {
	r.t.Helper()
	m := r.cdc()
	m.Prod = r.c.ours().cursor(r.c.Positions().Received + uint64(n))
	m.Flags = flags
	r.recv(r.link, m)
}

// got has the peer read n bytes and say so.
func (r *rig) got(n int) {
	r.t.Helper()
	m := r.cdc()
	m.Cons = r.c.theirs().cursor(r.c.Positions().PeerRead + uint64(n))
	r.recv(r.link, m)
}

// send produces n bytes.
func (r *rig) send(n int) {
	produce(r.c, r.s.now, n)
	r.take()
}

func (r *rig) expect(want string) {
	r.t.Helper()
	if got := r.sent(); got != want {
		r.t.Fatalf("sent %q, want %q", got, want)
	}
}

// kinds returns the kinds of the actions since the last look.
func (r *rig) kinds() []string {
	r.take()
	var out []string
	for _, a := range r.acts {
		if k := a.Kind.String(); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// produce sends n bytes of whatever is in the send memory.
func produce(c *Conn, now time.Time, n int) {
	_, _, _ = c.SendSpace(n, n)
	c.Produced(now, n)
}

// eyeCatcher is the eye catcher of RFC 7609, section 4.2.
var eyeCatcher = []byte{0xE2, 0xD4, 0xC3, 0xD9}

// layout is where the data is in an RMB element: size bytes from start on.
type layout struct{ start, size int }

// ours and theirs return the layouts of the elements of both sides.
func (c *Conn) ours() layout {
	return layout{c.rmb.size - c.RecvSize(), c.RecvSize()}
}

func (c *Conn) theirs() layout {
	l := layout{size: c.peer.SizeCode.Bytes()}
	if c.g.peerEye {
		l.start = 4
	}
	l.size -= l.start
	return l
}

// cursor returns the cursor of a position in the stream.
func (l layout) cursor(pos uint64) wire.Cursor {
	return wire.Cursor{Wrap: uint16(pos / uint64(l.size)), Count: uint32(l.start) + uint32(pos%uint64(l.size))}
}

// ahead returns how far a cursor is ahead of a position, modulo the 65536 windows
// that a cursor can tell apart. It returns false if the cursor is not in the element.
func (l layout) ahead(c wire.Cursor, pos uint64) (uint64, bool) {
	if int(c.Count) < l.start || int(c.Count) > l.start+l.size {
		return 0, false
	}
	at := uint64(c.Wrap)*uint64(l.size) + uint64(c.Count) - uint64(l.start)
	return (at - pos) % (uint64(l.size) << 16), true
}

// element returns the RMB element of a connection.
func (c *Conn) element() []byte { return c.rmb.element(c.elem) }

// offset returns where in the element of to an RDMA WRITE goes.
func offset(a Action, to *Conn) int {
	return int(a.RemoteAddr-to.rmb.at[a.Link.slot].Addr) - to.elem*to.rmb.size
}
