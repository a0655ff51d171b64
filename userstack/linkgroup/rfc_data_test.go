// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestElementReusedByPeer: the peer gives the element of a connection, which has
// data both ways, to another one. The first is reset: nothing is written or sent
// for it any more, what it has received is dropped; the second goes on (RFC 7609,
// section 4.4.2).
func TestElementReusedByPeer(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, noTest)
		r.open()
		r.give(100, 0)
		r.send(10)
		r.send(10) // waits for the message before
		r.c.CloseWrite(r.s.now)
		r.take()
		r.acts = nil
		o, err := r.g.NewConn(r.s.now, 0, 4096)
		if err != nil {
			t.Fatal(err)
		}
		p := peerRMB
		p.Token++
		if err := o.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
		r.done()
		r.wait(2 * time.Minute)
		for _, a := range r.acts {
			if a.Kind == ActSend || a.Kind == ActWrite {
				t.Errorf("%s: %s for a connection whose element the peer has given away", role, a.Kind)
			}
		}
		if r.c.State() != smc.StateClosed || len(r.close) != 1 || !errors.Is(r.close[0], conn.ErrReset) || !errors.Is(r.c.ReadErr(), conn.ErrReset) || !errors.Is(r.c.WriteErr(), conn.ErrReset) {
			t.Errorf("%s: state %s, closed with %v, reads %v", role, r.c.State(), r.close, r.c.ReadErr())
		}
		if a, b := r.c.RecvData(); len(a)+len(b) != 0 {
			t.Errorf("%s: %d bytes to be read", role, len(a)+len(b))
		}
		used := r.c.rmb.inUse
		r.c.Release()
		if r.c.rmb.inUse != used-1 {
			t.Errorf("%s: our element is not freed", role)
		}
		r.acts = nil
		produce(o, r.s.now, 5)
		r.expect("cdc")
	}
}

// TestElementIsThePeers: from when its index is told until the connection has
// ended, the owner of an element does not write to it (RFC 7609, section 4.4.1).
func TestElementIsThePeers(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.EyeCatcher = true })
	r.openEye()
	var before []byte
	same := func(when string) {
		t.Helper()
		if !bytes.Equal(before, r.c.element()) {
			t.Errorf("%s: the element has changed", when)
		}
	}
	for i := range r.c.element()[len(eyeCatcher):] { // the peer's writes
		r.c.element()[len(eyeCatcher)+i] = byte(i * 7)
	}
	before = bytes.Clone(r.c.element())
	for range 20 {
		r.give(3000, 0)
		same("received")
		r.c.Consumed(r.s.now, 3000)
		same("read")
		if a, b := r.c.RecvData(); len(a)+len(b) != 0 {
			t.Fatalf("%d bytes are left to read, want 0", len(a)+len(b))
		}
		r.send(100)
		r.done()
		r.got(100)
		same("sent")
	}
	r.give(3, prodUrgent)
	_, _ = r.c.Urgent(false)
	r.c.Consumed(r.s.now, 2)
	same("urgent data")
	r.do("D")
	r.do("close")
	r.done()
	same("closed")
	r.do("C")
	same("ended")
	if r.c.State() != smc.StateClosed {
		t.Errorf("state %s", r.c.State())
	}
}

// TestValidationSaysNothingElse: of a failover validation message only the
// sequence number counts; its cursors and flags say nothing, and it is not replied
// to (RFC 7609, section 4.6.1 and appendix A.4).
func TestValidationSaysNothingElse(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.give(100, 0)
	r.send(10)
	r.done()
	r.acts = nil
	was := r.c.Info()
	r.recv(r.link, wire.CDC{
		Seq: r.seq + 1, Token: r.c.Token(), Prod: wire.Cursor{Wrap: 9, Count: 1 << 31}, Cons: wire.Cursor{Wrap: 7, Count: 12345},
		Flags: wire.ProdFailoverVerify | wire.ProdWriterBlocked | wire.ProdCursorRequest | prodUrgent,
		State: wire.ConnSendingDone | wire.ConnClosed | wire.ConnAbnormalClose,
	})
	r.recv(r.link, r.cdc()) // the message that it is about
	r.done()
	r.wait(time.Second)
	if got := r.c.Info(); got != was || r.c.State() != smc.StateActive {
		t.Errorf("%s, %+v; was %+v", r.c.State(), got, was)
	}
	r.expect("")
}

// TestNothingSentAfterClosed: a side that has said C sends nothing more for the
// connection, whatever the peer still says, until a timer ends it (RFC 7609,
// section 4.8.1 and appendix A.4).
func TestNothingSentAfterClosed(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.give(100, 0)
	r.c.Consumed(r.s.now, 100)
	r.do("close")
	r.expect("cdc+C")
	r.do("ok")
	r.give(200, wire.ProdWriterBlocked|wire.ProdCursorRequest)
	r.give(0, prodUrgent)
	r.do("D")
	r.wait(DefaultTimers(smc.Server).CloseWait - time.Second)
	r.expect("")
	r.do("C")
	r.expect("")
	if len(r.close) != 1 || r.close[0] != nil {
		t.Errorf("closed with %v", r.close)
	}
}

// TestReplayNumbers: what was under way when a link failed is written again before
// anything new, in messages that go on counting behind the last one of the old
// link; the validation message, the very first, has the number of the last one
// that was acknowledged and takes none itself (RFC 7609, sections 4.6.1 and 4.6.2,
// appendix A.4).
func TestReplayNumbers(t *testing.T) {
	s, srv, cli := pair(t, 1, 2, 2, noTest)
	c := srv.c
	c.SetNoDelay(s.now, true)
	produce(c, s.now, 100)
	srv.h.drain()
	s.runUntilIdle()
	produce(c, s.now, 10) // message 2
	produce(c, s.now, 10) // message 3
	produce(c, s.now, 10) // waits: two are outstanding
	srv.h.acts = c.g.TakeActions(srv.h.acts)
	c.g.LinkFailed(s.now, c.link, errors.New("cable"))
	var got []wire.CDC
	wrote := map[int]bool{}
	for _, a := range c.g.TakeActions(nil) {
		switch {
		case a.Kind == ActWrite:
			if len(got) == 0 {
				t.Error("a write before the validation message")
			}
			for i := range a.Len {
				wrote[offset(a, cli.c)+i] = true
			}
		case a.Kind == ActSend && wire.IsCDC(a.Message()):
			m, err := wire.ParseCDC(a.Message())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, m)
			if len(got) > 1 && int(m.Prod.Count) != 100+len(wrote) {
				t.Errorf("producer cursor %d after %d bytes were written again", m.Prod.Count, len(wrote))
			}
		}
	}
	if len(got) < 2 || got[0].Seq != 1 || got[0].Flags != wire.ProdFailoverVerify || got[0].Token != cli.c.Token() {
		t.Fatalf("messages %+v", got)
	}
	for i, m := range got[1:] {
		if m.Seq != uint16(4+i) || m.Flags&wire.ProdFailoverVerify != 0 {
			t.Errorf("message %d after the validation: %+v", i+1, m)
		}
	}
	if !wrote[100] || !wrote[119] || wrote[99] {
		t.Errorf("written again: %v", wrote)
	}
}

// TestBlockedWriterUnblocks: while the B bit is set each read is told, until a
// message without it comes (RFC 7609, section 4.5.1).
func TestBlockedWriterUnblocks(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.give(1000, wire.ProdWriterBlocked)
	for range 3 {
		r.c.Consumed(r.s.now, 1)
		r.expect("cdc")
		r.done()
		r.acts = nil
	}
	r.give(0, 0)
	r.c.Consumed(r.s.now, 1)
	r.expect("")
	r.give(0, wire.ProdWriterBlocked)
	r.expect("cdc") // what was read since
}

// TestElementBusyUntilBothAreDone: an element is free for another connection when
// both sides have said that they are done with it, and the driver too (RFC 7609,
// section 4.4.2).
func TestElementBusyUntilBothAreDone(t *testing.T) {
	for _, steps := range [][]string{{"close", "ok", "C"}, {"C", "close", "ok"}, {"abort", "ok", "A"}, {"A", "ok"}} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
		r.open()
		m := r.c.rmb
		free := func() bool {
			c, err := r.g.NewConn(r.s.now, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Cancel(r.s.now)
			return c.rmb == m
		}
		for i, step := range steps {
			if free() {
				t.Errorf("%v: free before step %d", steps, i)
			}
			r.do(step)
			// The driver gives the element back when it learns of the end.
			if over := r.c.State() == smc.StateClosed; over != (i == len(steps)-1) {
				t.Errorf("%v: over after step %d: %v", steps, i, over)
			}
		}
		if r.c.State() != smc.StateClosed || free() {
			t.Errorf("%v: %s, or free before the driver has released it", steps, r.c.State())
		}
		r.c.Release()
		if !free() {
			t.Errorf("%v: not free in the end", steps)
		}
	}
}
