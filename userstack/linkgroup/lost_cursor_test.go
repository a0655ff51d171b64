// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// fill writes as much into the peer's element of a connection as it takes, and a little
// waits. It returns how many bytes of the element are free.
func (r *rig) fill(c *Conn) int {
	for {
		a, b, err := c.SendSpace(1024, 1024)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(a)+len(b) < 1024 {
			c.DropSpace()
			break
		}
		c.Produced(r.s.now, 1024)
		r.done()
	}
	r.acts = nil
	p := c.Positions()
	return c.theirs().size - int(p.Written-p.PeerRead)
}

// written returns how many bytes were written since the last look, and over which links.
func (r *rig) written() (n int, over []*Link) {
	r.take()
	for _, a := range r.acts {
		if a.Kind == ActWrite {
			n += a.Len
			over = append(over, a.Link)
		}
	}
	return n, over
}

// TestPeersLinkLost: the link over which the peer sends is lost, and with it perhaps the
// last consumer cursor. Linux does not repeat it. This side writes over another link, which
// works. It asks for the cursor with a byte that it has kept for that.
func TestPeersLinkLost(t *testing.T) {
	for spare, losesCursor := range map[int]bool{2: true, 0: false} { // bytes of the element that are kept
		for _, role := range []smc.Role{smc.Server, smc.Client} {
			r := newRig(t, role, func(c *Config) {
				noTest(c)
				c.Devices = append(c.Devices, device(role, 1))
			})
			r.g.connCfg.Peer.LosesCursor = losesCursor // as with a peer of version 2 that is not Linux
			l2 := r.two(nil)
			if free := r.fill(r.c); free != spare {
				t.Fatalf("%s: %d bytes are free, want %d", role, free, spare)
			}
			mine, theirs := r.c.link, l2
			if mine == l2 {
				theirs = r.link
			}
			r.recv(theirs, r.cdc()) // the peer sends over the other link
			r.acts = nil
			r.g.LinkFailed(r.s.now, theirs, errors.New("cable"))
			n, over := r.written()
			if n != min(1, spare) || n > 0 && over[0] != mine {
				t.Errorf("%s: %d bytes were written, %q, with %d kept", role, n, r.sent(), spare)
			}
			if spare > 0 {
				asked := false
				for _, a := range r.acts {
					if m, err := wire.ParseCDC(a.Msg[:]); a.Kind == ActSend && err == nil {
						asked = asked || m.Flags&wire.ProdCursorRequest != 0
					}
				}
				if !asked {
					t.Errorf("%s: the cursor is not asked for", role)
				}
			}
		}
	}
}

// TestSecondLinkKeepsReserve: a connection that is older than the second link keeps bytes of
// the element from then on, and none before. A newer one does so from the beginning.
func TestSecondLinkKeepsReserve(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.done()
	if free := r.fill(r.c); free != 0 {
		t.Fatalf("one link: %d bytes are free, want 0", free)
	}
	r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 3, MTU: 3})
	pairs := [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}
	r.recv(r.link, wire.AddLinkCont{LinkNum: 3, Left: 1, Pairs: pairs})
	added := r.g.links.byID(3)
	r.recv(added, r.confirmLink(false, added))
	if added.state != smc.LinkActive {
		t.Fatalf("the new link is %s", added.state)
	}
	r.got(r.c.theirs().size)
	r.done()
	if free := r.fill(r.c); free != 2 {
		t.Errorf("two links: %d bytes are free, want 2", free)
	}

	newer, err := r.g.NewConn(r.s.now, 0, 4096)
	if err != nil {
		t.Fatal(err)
	}
	at := peerRMB
	at.Index, at.Token = 3, 0x7778
	if err := newer.Attach(r.s.now, at); err != nil {
		t.Fatal(err)
	}
	if free := r.fill(newer); free != 2 {
		t.Errorf("newer connection: %d bytes are free, want 2", free)
	}
}
