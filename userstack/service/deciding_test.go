// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"smcr/smc"
	"smcr/userstack/divert"
)

// TestDeciding: who asks waits for connections that are being decided, and for no others, and not for long.
func TestDeciding(t *testing.T) {
	const soon = 3 * time.Millisecond
	flow := func(r smc.Role, cookie uint64) *divert.Flow { return &divert.Flow{Role: r, Cookie: cookie} }
	for _, test := range []struct {
		name string
		do   func(d *deciding)
		ctx  time.Duration // when it ends; 0: never
		want time.Duration
	}{
		{name: "nothing", do: func(*deciding) {}},
		{name: "one", do: func(d *deciding) {
			f := flow(smc.Client, 1)
			d.begin(f)
			time.AfterFunc(soon, func() { d.end(f) })
		}, want: soon},
		{name: "several", do: func(d *deciding) {
			for i := range time.Duration(4) {
				f := flow(smc.Server, uint64(i))
				d.begin(f)
				time.AfterFunc((i+1)*soon, func() { d.end(f) })
			}
		}, want: 4 * soon},
		{name: "over", do: func(d *deciding) {
			f := flow(smc.Client, 1)
			d.begin(f)
			d.end(f)
			d.end(f)
		}},
		{name: "never noted", do: func(d *deciding) { d.end(flow(smc.Client, 1)) }},
		{name: "a later one", do: func(d *deciding) {
			f, later := flow(smc.Client, 1), flow(smc.Client, 2)
			d.begin(f)
			time.AfterFunc(soon, func() {
				d.begin(later)
				d.end(f)
			})
		}, want: soon},
		{name: "never decided", do: func(d *deciding) { d.begin(flow(smc.Client, 1)) }, want: settleMost},
		{name: "after one that was never decided", do: func(d *deciding) {
			d.begin(flow(smc.Client, 1))
			d.wait(context.Background())
			d.begin(flow(smc.Client, 2))
		}},
		{name: "a while after that", do: func(d *deciding) {
			d.begin(flow(smc.Client, 1))
			d.wait(context.Background())
			time.Sleep(settleAgain)
			d.begin(flow(smc.Client, 2))
		}, want: settleMost},
		{name: "not decided for long", do: func(d *deciding) {
			d.begin(flow(smc.Client, 1))
			time.Sleep(settleMost)
		}},
		{name: "one of two not decided for long", do: func(d *deciding) {
			d.begin(flow(smc.Client, 1))
			time.Sleep(settleMost)
			f := flow(smc.Client, 2)
			d.begin(f)
			time.AfterFunc(soon, func() { d.end(f) })
		}, want: soon},
		{name: "who asks goes", do: func(d *deciding) { d.begin(flow(smc.Client, 1)) }, ctx: soon, want: soon},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := deciding{of: map[*divert.Flow]decision{}}
				test.do(&d)
				ctx := t.Context()
				if test.ctx > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.ctx)
					defer cancel()
				}
				began := time.Now()
				both := make(chan struct{})
				go func() {
					d.wait(ctx)
					close(both)
				}()
				d.wait(ctx)
				<-both
				if took := time.Since(began); took != test.want {
					t.Errorf("%v, want %v", took, test.want)
				}
			})
		})
	}
}

// TestDecidingClients: the connections of clients are listed meanwhile. Those of servers no program has.
func TestDecidingClients(t *testing.T) {
	d := deciding{of: map[*divert.Flow]decision{}}
	ended := &divert.Flow{Role: smc.Client, Cookie: 3}
	for _, f := range []*divert.Flow{{Role: smc.Client, Cookie: 1}, {Role: smc.Server, Cookie: 2}, ended, {Role: smc.Client, Cookie: 4}} {
		d.begin(f)
	}
	d.end(ended)
	if got, want := d.clients(), map[uint64]bool{1: true, 4: true}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
