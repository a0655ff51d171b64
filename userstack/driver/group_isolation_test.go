// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/linkgroup"
)

// TestForeignRKey: a peer that knows the RKey and the address of another peer's RMB
// cannot write to it, and loses its link (RFC 7609, section 5; each link group has its
// own protection domain).
func TestForeignRKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		c, s := b.connect()
		// The link group of the other peer connects the same hosts.
		cc, sc := b.tcp()
		c3, s3 := b.first(cc, sc)
		c3.Start()
		s3.Start()
		other, there := &end{Conn: c3}, &end{Conn: s3}
		if s3.g == s.g {
			t.Fatal("two peers share a link group")
		}
		var victim linkgroup.ConnParams
		s.View(func(core *linkgroup.Conn) { victim = core.Local() })
		b.exchange(other, there, []byte("hello"))
		var send *region
		var l *link
		c3.g.do(func(time.Time) {
			for r := range c3.g.mem.regions {
				if r.chunks != nil {
					send = r
				}
			}
			l = c3.core.Link().Data.(*link)
		})
		mr := send.registration(l.port.Device())
		if _, err := c.Write([]byte("fine!")); err != nil { // it is written where the other peer writes
			t.Fatal(err)
		}
		time.Sleep(settled)
		wr := rdmaverbs.SendWR{ID: tokenFlag, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, RemoteAddr: victim.VAddr, RKey: uint32(victim.RKey)}
		wr.SG[0] = rdmaverbs.SGE{MR: mr, Len: 5}
		if _, err := l.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		if err := b.ended(other); err == nil {
			t.Error("the connection of the other peer went on")
		}
		b.ended(there)
		got := make([]byte, 5)
		if _, err := io.ReadFull(s, got); err != nil || string(got) != "fine!" {
			t.Errorf("read %q, %v", got, err)
		}
		b.exchange(c, s, pattern(1, 4000))
		b.finish(c, s)
	})
}
