// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestKeepAlive follows RFC 7609, section 4.5.3: the link is tested when both
// the connection and the link have been idle for so long, once for all
// connections, and its failure ends them.
func TestKeepAlive(t *testing.T) {
	const idle = 5 * time.Second
	r := newRig(t, smc.Server, noTest)
	r.open()
	o, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	p := peerRMB
	p.Index, p.Token = 9, 9
	if err := o.Attach(r.s.now, p); err != nil {
		t.Fatal(err)
	}
	r.acts = nil
	answer := func() {
		m, err := wire.ParseTestLink(r.last)
		if err != nil {
			t.Fatal(err)
		}
		m.Reply = true
		r.recv(r.link, m)
		r.done()
		r.acts = nil
	}
	r.wait(time.Minute)
	r.expect("") // not asked for
	r.c.SetKeepAlive(r.s.now, idle)
	o.SetKeepAlive(r.s.now, idle)
	r.wait(idle - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("test-link")
	answer()
	r.wait(3 * time.Second)
	r.give(1, 0) // the connection is used
	r.wait(4 * time.Second)
	r.expect("")
	r.recv(r.link, wire.CDC{Seq: 1, Token: o.Token(), Prod: wire.Cursor{Count: 1}}) // the link is
	r.wait(idle - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("test-link")
	answer()

	// The other connection is used by this side alone: the peer sends nothing over the
	// link. The idle time of this connection begins again, that of the first does not.
	r.c.SetKeepAlive(r.s.now, 0)
	r.wait(3 * time.Second)
	produce(o, r.s.now, 1)
	r.done()
	r.acts = nil
	r.wait(idle - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("test-link")
	answer()
	o.SetKeepAlive(r.s.now, 0)
	r.wait(time.Minute)
	r.expect("")
	r.c.SetKeepAlive(r.s.now, idle)
	r.wait(idle)
	r.expect("test-link")
	r.wait(r.g.cfg.Timers.TestLinkAnswer)
	for _, c := range []*Conn{r.c, o} {
		if c.State() != smc.StateClosed || !errors.Is(c.ReadErr(), conn.ErrReset) {
			t.Errorf("after no answer: %s, %v", c.State(), c.ReadErr())
		}
	}
}
