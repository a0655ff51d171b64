// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"smcr/userstack/wire"
)

// TestFailoverReplay: what was not confirmed is written again, except for
// what the peer is known to have read.
func TestFailoverReplay(t *testing.T) {
	s, srv, cli := pair(t, 1, 2, 2, noTest)
	c := srv.c
	produce(c, s.now, 1000)
	srv.h.drain()
	s.runUntilIdle()
	produce(c, s.now, 500) // seq 2, will be lost
	from := c.link
	srv.h.acts = c.g.TakeActions(srv.h.acts)
	c.g.LinkFailed(s.now, from, errors.New("cable"))
	acts := c.g.TakeActions(nil)
	var got []string
	for _, a := range acts {
		if a.Kind == ActWrite {
			got = append(got, fmt.Sprintf("write(%d+%d)", offset(a, cli.c), a.Len))
		} else if a.Kind == ActSend {
			got = append(got, describe(a.Msg[:]))
		}
		if (a.Kind == ActSend || a.Kind == ActWrite) && a.Link == from {
			t.Error("action on the failed link")
		}
	}
	want := fmt.Sprintf("cdc+F write(1000+500) cdc+R delete-link(%d)", from.id)
	if s := strings.Join(got, " "); s != want {
		t.Errorf("actions %q, want %q", s, want)
	}
	if n, again := TakeFailovers(c.g), TakeFailovers(c.g); n != 1 || again != 0 {
		t.Errorf("%d failovers, then %d; want 1, then 0", n, again)
	}
	f, _ := wire.ParseCDC(acts[0].Msg[:])
	if want := (wire.CDC{Seq: 1, Token: cli.c.Token(), Flags: wire.ProdFailoverVerify}); f != want {
		t.Errorf("validation %+v, want %+v", f, want)
	}
}
