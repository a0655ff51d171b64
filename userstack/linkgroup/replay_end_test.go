// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"

	"github.com/google/go-cmp/cmp"
)

// TestReplayLostDevice goes on where TestReplay leaves the group of two links:
// the client's first device goes down and comes back, its connection ends, and
// the client ends the group. Linux's server did not delete the link, which the
// client had asked for; the group does.
func TestReplayLostDevice(t *testing.T) {
	r := newReplay(t, smc.Server, "two-rnics-v1.eth0", "two-rnics-v1.eth1")
	r.run()
	var said []string
	collect := func() {
		for _, o := range r.out {
			said = append(said, describe(o.msg))
		}
		r.out = nil
	}
	for _, m := range readCaptures(t, "two-rnics-v1.end.eth1") {
		if !m.server {
			collect()
			said = append(said, "< "+describe(m.msg))
			r.feed(m)
			if x, err := wire.ParseDeleteLink(m.msg); err == nil && !x.All {
				collect()
				// So answers a client that has dropped the link: docs/interop.md.
				b, err := wire.DeleteLink{Reply: true, LinkNum: x.LinkNum, Reason: wire.DeleteLinkUnknownLink}.AppendBinary(nil)
				if err != nil {
					t.Fatal(err)
				}
				r.g.Received(r.now, r.g.links.byID(2), b)
				r.drain()
			}
			continue
		}
		i := r.find(m)
		if i < 0 {
			t.Errorf("%s: nothing like %s among what the group sent", m.where, describe(m.msg))
		} else if !bytes.Equal(r.out[i].msg, m.msg) {
			t.Errorf("%s: kernel % x\ngroup % x", m.where, m.msg, r.out[i].msg)
		}
	}
	collect()
	want := []string{
		"< delete-link(1)", "cdc+F", "delete-link(1)", // the connection moves before
		"< add-link", // a request, for which this host has no device left
		"< test-link", "re:test-link",
		"< delete-rkey(1)", "re:delete-rkey(1)",
		"< delete-link-all", "delete-link-all",
	}
	if d := cmp.Diff(want, said); d != "" {
		t.Errorf("want -, got +\n%s", d)
	}
}
