// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smcr/pnet"
	"smcr/quota"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
	"smcr/userstack/simfabric"
)

// wantDecline checks that err reports a DECLINE for this reason.
func wantDecline(t *testing.T, who string, err error, code smc.Diagnosis, remote bool) {
	t.Helper()
	var d *DeclineError
	if !errors.As(err, &d) {
		t.Errorf("%s: %v, want a DeclineError", who, err)
		return
	}
	if d.Code != code || d.Remote != remote {
		t.Errorf("%s: %v (remote %v), want %v (remote %v)", who, d, d.Remote, code, remote)
	}
}

// stillTCP checks that a connection that was declined carries data both ways.
func (b *bed) stillTCP(ct, st *simfabric.TCPConn) {
	b.t.Helper()
	b.exchange(ct, st, pattern(11, 100<<10))
	b.exchange(st, ct, pattern(12, 100<<10))
	ct.Close()
	st.Close()
}

// TestDecline: one side declines, and the connection continues as TCP.
func TestDecline(t *testing.T) {
	noDevs := func(c *Config) { c.NetDevs = []string{"none"} }
	tests := []struct {
		name   string
		conf   bedConfig
		client smc.Diagnosis
		server smc.Diagnosis
		byPeer bool // the server declined, and the client has received the DECLINE
	}{
		{"ClientNoDevice", bedConfig{client: noDevs}, smc.DiagNoSMCRDev, smc.DiagNoSMCRDev, false},
		{"ServerNoDevice", bedConfig{server: noDevs}, smc.DiagNoSMCRDev, smc.DiagNoSMCRDev, true},
		{
			"ClientPNETWithoutDevice",
			bedConfig{client: func(c *Config) {
				c.PNETs = new(pnet.Table)
				for _, e := range []pnet.Entry{{ID: "NET1", NetDev: "eth0"}, {ID: "NET2", IBDev: "sim-eth0"}} {
					if err := c.PNETs.Add(e); err != nil {
						panic(err)
					}
				}
			}}, smc.DiagNoSMCRDev, smc.DiagNoSMCRDev, false,
		},
		{"ClientNoRoute", bedConfig{client: func(c *Config) { c.network = noNetwork{} }}, smc.DiagNoRoute, smc.DiagNoRoute, false},
		{"ServerNoRoute", bedConfig{server: func(c *Config) { c.network = noNetwork{} }}, smc.DiagNoRoute, smc.DiagNoRoute, true},
		{"ServerOtherSubnet", bedConfig{server: func(c *Config) { c.network = shorter{c.network} }}, smc.DiagPrefixMismatch, smc.DiagPrefixMismatch, true},
		{
			// The provider has no device on eth0.
			"ServerOtherDevice",
			bedConfig{server: func(c *Config) { c.Providers = []rdmaverbs.Provider{noProvider{}} }}, smc.DiagNoSMCRDev, smc.DiagNoSMCRDev, true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, tt.conf)
				ct, st := b.tcp()
				_, _, cerr, serr := b.rendezvous(ct, st)
				wantDecline(t, "client", cerr, tt.client, tt.byPeer)
				wantDecline(t, "server", serr, tt.server, !tt.byPeer)
				b.stillTCP(ct, st)
				if len(groups(b.client))+len(groups(b.server)) != 0 {
					t.Error("a link group is left")
				}
				cf, _ := b.client.Control().Fallbacks(t.Context())
				sf, _ := b.server.Control().Fallbacks(t.Context())
				if cf.ClientTotal != 1 || sf.ServerTotal != 1 {
					t.Errorf("fallbacks: client %+v, server %+v", cf, sf)
				}
			})
		})
	}
}

// TestContextEndsRendezvous checks that a rendezvous ends at once with its context.
func TestContextEndsRendezvous(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		cause := errors.New("changed my mind")
		for name, run := range map[string]func(context.Context, TCPConn) (*Conn, error){"client": b.client.Client, "server": b.server.Server} {
			ct, st := b.tcp()
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			start := time.Now()
			_, err := run(ctx, ct)
			if err == nil || time.Since(start) > 1100*time.Millisecond {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
			ctx, cancel = context.WithCancelCause(context.Background())
			cancel(cause)
			if _, err := run(ctx, ct); !errors.Is(err, cause) {
				t.Errorf("%s with a context that has ended: %v", name, err)
			}
			ct.Close()
			st.Close()
		}
	})
}

// TestHandshakeLimit checks that a stack with a limit declines when there are too many
// rendezvous. One host with too many leaves those of others alone.
func TestHandshakeLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		if err := b.server.Control().SetHSLimitation(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		var all []rendezvous.Caller
		caller := func(i int) rendezvous.Caller {
			return rendezvous.Caller{Host: addr(i, 0), Origin: quota.OriginOfHost(addr(i, 0))}
		}
		for i := range 32 { // as if rendezvous did not end
			for b.server.limit.add(caller(3+i)) == nil {
				all = append(all, caller(3+i))
			}
			if len(all) == hsLimit {
				break
			}
			b.finish(b.connect())
		}
		if len(all) != hsLimit || all[hsLimit/2-1] != caller(3) || all[hsLimit/2] == caller(3) {
			t.Fatalf("rendezvous with %v", all)
		}
		ct, st := b.tcp()
		_, _, cerr, serr := b.rendezvous(ct, st)
		wantDecline(t, "client", cerr, smc.DiagConfig, true)
		wantDecline(t, "server", serr, smc.DiagConfig, false)
		b.stillTCP(ct, st)
		for _, a := range all {
			b.server.limit.remove(a)
		}
		b.finish(b.connect())
	})
}

func TestDeclineErrorText(t *testing.T) {
	err := error(&DeclineError{Code: smc.DiagNoSMCRDev, Err: ErrNoDevice})
	if !errors.Is(err, ErrNoDevice) {
		t.Error("DeclineError hides its cause")
	}
	for _, e := range []error{err, &DeclineError{Remote: true, Code: smc.DiagMem}} {
		if s := e.Error(); !strings.HasPrefix(s, "userstack: ") || strings.Contains(s, "%!") {
			t.Errorf("text %q", s)
		}
	}
}

// noNetwork has no route to any host.
type noNetwork struct{}

func (noNetwork) Route(_, remote netip.Addr) (network.Route, error) {
	return network.Route{}, fmt.Errorf("%w: %s is behind a router", ErrNotOnLink, remote)
}

func (noNetwork) Secured(_, _ netip.AddrPort) (bool, error) { return false, nil }

func (noNetwork) NetDevs() ([]network.NetDev, error) { return nil, nil }

// shorter returns all subnets with prefixes that are one bit shorter.
type shorter struct{ network.Network }

func (n shorter) Route(local, remote netip.Addr) (network.Route, error) {
	rt, err := n.Network.Route(local, remote)
	var out []netip.Prefix
	for _, p := range rt.Local {
		out = append(out, netip.PrefixFrom(p.Addr(), p.Bits()-1))
	}
	rt.Local = out
	return rt, err
}
