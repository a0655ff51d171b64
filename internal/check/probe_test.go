// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/smc"
)

// deciding is a stack that lists the first connection of a listener, which is decided after some listings.
type deciding struct {
	nl.Control
	l     *net.TCPListener
	conn  *net.TCPConn
	after int
	row   *nl.Connection // nil: the connection is reset then
	asked func()         // called at each listing
}

func (d *deciding) Connections(context.Context) ([]nl.Connection, error) {
	d.asked()
	if d.conn == nil {
		c, err := d.l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		d.conn = c
	}
	row := nl.Connection{State: smc.StateInit, Mode: nl.ModeSMCR}
	if d.after--; d.after < 0 {
		if d.row == nil {
			return nil, errors.Join(d.conn.SetLinger(0), d.conn.Close())
		}
		row = *d.row
	}
	row.Local, row.Remote = d.conn.RemoteAddr().(*net.TCPAddr).AddrPort(), d.conn.LocalAddr().(*net.TCPAddr).AddrPort()
	return []nl.Connection{row}, nil
}

// TestProbeDecided: the outcome of a connection that the list has as undecided is that which it has later.
func TestProbeDecided(t *testing.T) {
	testkind.System(t)
	const never = 1 << 30
	overSMC := nl.Connection{State: smc.StateActive, Mode: nl.ModeSMCR, LinkGroup: 0x100, Link: &nl.ConnLink{IBDev: "soft-eth0"}}
	overTCP := nl.Connection{State: smc.StateActive, Mode: nl.ModeTCP, Fallback: nl.ConnFallback{Reason: uint32(smc.DiagNoPath)}}
	for _, test := range []struct {
		name  string
		after int
		row   *nl.Connection
		want  outcome // without Local and Took
	}{
		{"SMC-R, at once", 0, &overSMC, outcome{Announced: true, SMC: true, LinkGroup: 0x100, IBDev: "soft-eth0"}},
		{"SMC-R", 2, &overSMC, outcome{Announced: true, SMC: true, LinkGroup: 0x100, IBDev: "soft-eth0"}},
		{"TCP", 2, &overTCP, outcome{Announced: true, Reason: smc.DiagNoPath}},
		{"reset", 2, nil, outcome{TCPError: unix.ECONNRESET}},
		{"never", never, &overSMC, outcome{TCPError: context.Canceled}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := &deciding{l: l, after: test.after, row: test.row, asked: func() {
				if test.after == never { // who asks has no more patience
					cancel()
				}
			}}
			defer func() { _ = d.conn.Close() }()
			got, err := probeListed(ctx, d, l.Addr().(*net.TCPAddr).AddrPort(), unix.AF_INET, unix.IPPROTO_TCP, "absent")
			if err != nil {
				t.Fatal(err)
			}
			got.Local, got.Took = netip.AddrPort{}, 0
			if got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
