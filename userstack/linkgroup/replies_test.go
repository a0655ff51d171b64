// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestReplyOverLinkOfRequest: each reply goes over the link of its request, whichever link
// that is (RFC 7609, section 3.3).
func TestReplyOverLinkOfRequest(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, func(c *Config) {
			noTest(c)
			c.Devices = append(c.Devices, device(role, 1))
		})
		l2 := r.two(nil)
		for i, via := range []*Link{r.link, l2} {
			other := l2
			if via == l2 {
				other = r.link
			}
			key := smc.RKey(0xC0DE + i)
			rkey := wire.ConfirmRKey{Others: 1, This: smc.RToken{RKey: key, Addr: 1}}
			rkey.Other[0] = wire.LinkRToken{LinkNum: other.id, RToken: smc.RToken{RKey: key + 0x100, Addr: 1}}
			requests := []struct {
				m    encoding.BinaryAppender
				want string
			}{
				{wire.TestLink{}, "re:test-link"},
				{rkey, "re:confirm-rkey(1)"},
				{wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{key}}, "re:delete-rkey(1)"},
				{wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{0xBAD}}, "re:delete-rkey(1)-negative80"},
				{wire.DeleteLink{LinkNum: 99, Reason: wire.DeleteLinkLostPath}, "re:delete-link(99)-unknown"},
			}
			if role == smc.Client {
				requests = append(requests, struct {
					m    encoding.BinaryAppender
					want string
				}{wire.AddLink{MAC: smc.MAC{5: 7}, GID: smc.GID{15: 7}, QPN: 0x902, LinkNum: 3, MTU: 9}, "re:add-link-rejected2"})
			}
			for _, q := range requests {
				r.acts = nil
				r.recv(via, q.m)
				for _, a := range r.acts {
					if a.Kind == ActSend && a.Link != via {
						t.Errorf("%s: the answer to a request over link %d goes over link %d: %s", role, via.id, a.Link.id, describe(a.Message()))
					}
				}
				r.expect(q.want)
				r.done()
			}
		}
	}
}

// TestRefusedRKeyAfterExchange: a CONFIRM RKEY that was refused, to be sent again after the
// present exchange, is sent again when that exchange has ended, with the new link, and not
// only after a pause (RFC 7609, appendix A.3.5).
func TestRefusedRKeyAfterExchange(t *testing.T) {
	r := newRig(t, smc.Client, func(c *Config) {
		noTest(c)
		c.RMBEsPerRMB = 1
	})
	r.open()
	r.g.DeviceUp(r.s.now, device(smc.Client, 1))
	r.done()
	r.acts = nil
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	r.expect("confirm-rkey(0)")
	// The server has sent ADD LINK before it got CONFIRM RKEY. Its refusal overtakes that.
	r.recv(r.link, wire.ConfirmRKey{Reply: true, Negative: true, Retry: true, This: c.rmb.at[r.link.slot].RToken})
	r.expect("")
	r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 3, MTU: 3})
	pairs := [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}
	r.recv(r.link, wire.AddLinkCont{LinkNum: 3, Left: 1, Pairs: pairs})
	added := r.g.links.byID(3)
	r.recv(added, r.confirmLink(false, added))
	r.expect("re:add-link re:add-link-continuation(1) re:confirm-link confirm-rkey(1)")
}

// TestTokens: alert tokens are random, not 0 and never those of two connections, so that they
// do not tell the place of an RMB element (RFC 7609, section 1.2).
func TestTokens(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	seen := map[uint32]bool{r.c.Token(): true}
	var small int
	for range 20 {
		c, err := r.g.NewConn(r.s.now, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		if token := c.Token(); token == 0 || seen[token] {
			t.Errorf("token %#x", token)
		} else if token < 1<<16 {
			small++
		}
		seen[c.Token()] = true
	}
	if small > 3 {
		t.Errorf("%d of 20 tokens are small numbers", small)
	}
}
