// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/driver"
	"smcr/userstack/internal/inside"
)

// TestLimitDefaults: half of the memory of the machine for all connections, and half of
// that for one user.
func TestLimitDefaults(t *testing.T) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	var l Limits
	if err := l.setDefaults(); err != nil {
		t.Fatal(err)
	}
	if most := int64(info.Totalram) * int64(info.Unit) / 2; l.Memory <= 0 || l.Memory > most+1<<20 || l.UserMemory != l.Memory/2 || l.Groups != 4096 {
		t.Errorf("%+v, half of the machine is %d", l, most)
	}
	set := Limits{Memory: -1, UserMemory: -1, Conns: 3, Groups: -1}
	if err := set.setDefaults(); err != nil {
		t.Fatal(err)
	}
	if got := set.forDriver(); got != (driver.Limits{Conns: 3}) {
		t.Errorf("%+v", got)
	}
}

// TestAboveLimit: a connection above a limit of either side stays TCP, and the statistics
// give the reason. Existing connections continue, and there is room again when one ends.
// The limit of one user does not apply to another user.
func TestAboveLimit(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				limit := func(c *Config) { c.Limits = Limits{UserConns: 1} }
				conf := bedConfig{client: limit}
				if who == "server" {
					conf = bedConfig{server: limit}
				}
				b := newBed(t, conf)
				as := func(user uint32) (c, s *Conn, cerr, serr error) {
					ct, st := b.tcp()
					ctx := inside.WithOwner(context.Background(), inside.Owner{UID: user})
					done := make(chan struct{})
					go func() {
						defer close(done)
						s, serr = b.server.Server(ctx, st)
					}()
					c, cerr = b.client.Client(ctx, ct)
					<-done
					return c, s, cerr, serr
				}
				c, s, cerr, serr := as(1000)
				if cerr != nil || serr != nil {
					t.Fatal(cerr, serr)
				}
				_, _, cerr, serr = as(1000)
				wantDecline(t, "client", cerr, smc.DiagMem, who == "server")
				wantDecline(t, "server", serr, smc.DiagMem, who == "client")
				_, st := b.side(who)
				f := list(t, st.Control().Fallbacks)
				if len(f.Reasons) != 1 || f.Reasons[0].Reason != uint32(smc.DiagMem) || f.Reasons[0].Count != 1 {
					t.Errorf("fallbacks %+v", f)
				}
				c2, s2, cerr, serr := as(1001)
				if cerr != nil || serr != nil {
					t.Fatal(cerr, serr)
				}
				b.exchange(c, s, pattern(1, 100_000))
				b.exchange(s2, c2, pattern(2, 100_000))
				b.finish(c, s)
				b.finish(c2, s2)
				c, s, cerr, serr = as(1000)
				if cerr != nil || serr != nil {
					t.Fatal(cerr, serr)
				}
				b.finish(c, s)
			})
		})
	}
}
