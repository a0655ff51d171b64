// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"

	"smcr/internal/testing/adversary"
	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
)

// Floods by which a host of the LAN denies others what they have: at each stage of a connection.

// nothing is what the others are compared with.
func nothing(ctx context.Context, _ *floodBed, _ *atomic.Int64) error {
	<-ctx.Done()
	return nil
}

// forge has the hostile host send frames to both victims, one of each a turn.
func (f *floodBed) forge(ctx context.Context, times *atomic.Int64, send func(forger *adversary.Forger, to *netnstest.Host) error) error {
	forger, err := adversary.NewForger(f.hostile.Host)
	if err != nil {
		return err
	}
	defer forger.Close()
	const turns = 10
	return f.repeat(ctx, times, func() (int, error) {
		for i := range turns {
			if err := send(forger, []*netnstest.Host{f.a, f.b}[i%2]); err != nil {
				return i, err
			}
		}
		return turns, nil
	})
}

// frames cost what the packets of any flood cost.
func frames(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return f.forge(ctx, times, (*adversary.Forger).Nothing)
}

// server is where a victim serves.
func server(h *netnstest.Host) netip.AddrPort { return netip.MustParseAddrPort(h.Addr() + serverPort) }

// anyPort is a port of a client.
func anyPort() uint16 { return uint16(1024 + rand.IntN(60000)) }

// syns sends SYNs with the option from an address, from all ports.
func (f *floodBed) syns(ctx context.Context, times *atomic.Int64, from netip.Addr) error {
	return f.forge(ctx, times, func(forger *adversary.Forger, to *netnstest.Host) error {
		s := adversary.Segment{From: netip.AddrPortFrom(from, anyPort()), To: server(to), Seq: rand.Uint32(), Flags: adversary.SYN, Announces: true}
		return forger.TCP(to, &s)
	})
}

// synsUnanswered fills the server with handshakes that are half open: the victims reach the address, and nobody there answers.
func synsUnanswered(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	nobody := f.nth(0)
	for _, h := range []*netnstest.Host{f.a, f.b} {
		if _, err := h.Output(ctx, "ip", "neigh", "replace", nobody.String(), "lladdr", "02:00:00:00:77:77", "dev", h.Links[0].Name); err != nil {
			return err
		}
	}
	return f.syns(ctx, times, nobody)
}

// synsReset has the kernel of the hostile host reset each connection.
func synsReset(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return f.syns(ctx, times, f.hostile.Links[0].IPv4)
}

// synacks are of no connection, or have the addresses and ports of one and wrong numbers.
func synacks(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return f.forge(ctx, times, func(forger *adversary.Forger, to *netnstest.Host) error {
		from := server(f.a)
		if to == f.a {
			from = server(f.b)
		}
		s := adversary.Segment{From: from, To: netip.AddrPortFrom(to.Links[0].IPv4, anyPort()), Seq: rand.Uint32(), Ack: rand.Uint32(), Flags: adversary.SYN | adversary.ACK, Announces: true}
		return forger.TCP(to, &s)
	})
}

// silent has the victims hold connections whose clients say nothing.
func silent(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return f.hold(ctx, times, func(*adversary.Dialog) error { return nil })
}

// silentOfMany is silent from many addresses of one host, with a byte of CLC on some of the connections later.
func silentOfMany(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	if err := f.addresses(ctx); err != nil {
		return err
	}
	open := &ring{held: make([]func(), 4000)}
	defer open.close()
	var next atomic.Int64
	return f.repeat(ctx, times, func() (int, error) {
		n := int(next.Add(1))
		list, err := f.hostile.DialFrom(ctx, f.nth(1+n%manyAddresses), "", f.target(), 1)
		for _, d := range list {
			open.add(func() {
				if n%2 == 0 {
					_, _ = d.Conn.Write([]byte{0xe2})
				}
				_ = d.Close()
			})
		}
		return len(list), err
	})
}

// noise has the victims read what is no CLC message, or the half of one.
func noise(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	const most = 2000
	return f.hold(ctx, times, func(d *adversary.Dialog) error {
		n := 1 + rand.IntN(most)
		part := make([]byte, n)
		if n > 8 && n%2 == 0 {
			copy(part, "\xe2\xd4\xc3\xd9\x01\xff\xff\x10") // the header of a long PROPOSAL
		}
		_, err := d.Conn.Write(part)
		return err
	})
}

// hold makes connections, with what is said on each, and keeps the newest ones open.
func (f *floodBed) hold(ctx context.Context, times *atomic.Int64, say func(d *adversary.Dialog) error) error {
	open := &ring{held: make([]func(), 4000)}
	defer open.close()
	return f.repeat(ctx, times, func() (int, error) {
		list, err := f.hostile.Dial(ctx, f.target(), perDial)
		for _, d := range list {
			open.add(func() { _ = d.Close() })
			err = errors.Join(err, say(d))
		}
		return len(list), err
	})
}

// nth returns an address of the LAN that no host has.
func (f *floodBed) nth(i int) netip.Addr {
	a := f.hostile.Links[0].IPv4.As4()
	a[3] = byte(20 + i)
	return netip.AddrFrom4(a)
}

// manyAddresses is how many the hostile host takes.
const manyAddresses = 200

// addresses gives the hostile host many addresses: those of nth, from 1 on.
func (f *floodBed) addresses(ctx context.Context) error {
	var batch strings.Builder
	for i := range manyAddresses {
		fmt.Fprintf(&batch, "addr replace %s/24 dev %s\n", f.nth(1+i), f.hostile.Links[0].Name)
	}
	cmd := f.hostile.Command(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, out)
	}
	return nil
}

// proposalsOfMany has one host propose from many addresses.
func proposalsOfMany(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	if err := f.addresses(ctx); err != nil {
		return err
	}
	eid, err := ueid()
	if err != nil {
		return err
	}
	open := &ring{held: make([]func(), 4000)}
	defer open.close()
	var next atomic.Int64
	return f.repeat(ctx, times, func() (int, error) {
		list, err := f.hostile.DialFrom(ctx, f.nth(1+int(next.Add(1))%manyAddresses), "", f.target(), 1)
		for _, d := range list {
			open.add(func() { _ = d.Close() })
			id := newPeer(f.hostile)
			p, perr := id.Proposal(eid)
			err = errors.Join(err, perr, d.Send(p))
		}
		return len(list), err
	})
}

// anyQueuePair sends RoCE packets to queue pairs of others, and of nobody, from addresses and ports of nobody.
func anyQueuePair(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return f.forge(ctx, times, func(forger *adversary.Forger, to *netnstest.Host) error {
		pkt := adversary.Write(0, 0, make([]byte, 64))
		pkt.DestQP, pkt.PSN = rand.Uint32N(1<<12), rand.Uint32()&header.PSNMask
		return forger.RoCE(netip.AddrPortFrom(f.nth(rand.IntN(200)), anyPort()), to, &pkt)
	})
}
